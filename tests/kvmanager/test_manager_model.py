"""The KV manager against the oracle, under every mixture of events that Hypothesis comes up with."""

from __future__ import annotations

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvmanager.capacity import Capacity
from kvmanager.errors import DeadlineExceeded, ExecutorFailed, InvalidRequest, QueueFull
from kvmanager.manager import KVManager
from kvmanager.request import FinishReason, RequestSpec
from kvmanager.scheduler import Limits
from kvmanager.step import Outputs
from tests.oracle import VOCAB_SIZE, Oracle, expected_output

MAX_MODEL_LEN = 60


class KVManagerMachine(RuleBasedStateMachine):
    """Submits, aborts, expires, loses executors, and delivers results as early or late as the pipeline allows.

    Whatever happens: each sequence's tokens are the expected ones without a gap or a repeat, every request ends exactly
    once, every invariant holds after each event, and at the end no block is missing.
    """

    @initialize(
        num_blocks=st.integers(4, 40),
        block_size=st.sampled_from([1, 2, 3, 4, 8]),
        max_batched_tokens=st.integers(8, 40),
        max_sequences=st.integers(4, 8),
        prefix_caching=st.booleans(),
        seed=st.integers(0, 2**32),
    )
    def start(self, num_blocks, block_size, max_batched_tokens, max_sequences, prefix_caching, seed):
        self.rng = random.Random(seed)
        self.now = 0.0
        self.capacity = Capacity(num_blocks, block_size, MAX_MODEL_LEN)
        limits = Limits(max_batched_tokens, max_sequences, max_waiting_requests=12)
        self.manager = KVManager(limits, prefix_caching=prefix_caching)
        self.manager.attach_executor(self.capacity, self.now)
        self.oracle = Oracle(num_blocks, block_size, self.rng)
        self.specs: dict[int, RequestSpec] = {}
        self.max_tokens: dict[int, int] = {}
        self.received: dict[tuple[int, int], list[int]] = {}
        self.reasons: dict[tuple[int, int], FinishReason | None] = {}
        self.ended_by_caller: set[tuple[int, int]] = set()
        self.prompts: list[list[int]] = []
        self.handles = 0

    # What a caller does

    @rule(
        own_length=st.integers(1, 30),
        common=st.integers(0, 30),
        n=st.sampled_from([1, 1, 1, 2, 3, 4]),
        max_tokens=st.integers(0, 25),
        min_tokens=st.integers(0, 3),
        salt=st.sampled_from([b"a", b"a", b"b"]),
        stops=st.booleans(),
        lifetime=st.one_of(st.none(), st.floats(0.5, 30.0)),
    )
    def submit(self, own_length, common, n, max_tokens, min_tokens, salt, stops, lifetime):
        self.handles += 1
        handle = self.handles
        start = self.rng.choice(self.prompts)[:common] if self.prompts else []
        prompt = start + [self.rng.randrange(VOCAB_SIZE) for _ in range(own_length)]
        stop = frozenset(self.rng.sample(range(VOCAB_SIZE), 3)) if stops else frozenset()
        deadline = None if lifetime is None else self.now + lifetime
        min_tokens = min(min_tokens, max_tokens) if max_tokens else min_tokens
        spec = RequestSpec(handle, prompt, salt, n, max_tokens, min_tokens, stop, handle, deadline)
        try:
            length = self.capacity.resolve_max_length(spec)
            self.manager.submit(spec, self.now)
        except (InvalidRequest, QueueFull):
            return
        self.prompts.append(prompt)
        self.specs[handle] = spec
        self.max_tokens[handle] = length - len(prompt)
        for index in range(n):
            self.received[handle, index] = []

    @precondition(lambda self: self.specs)
    @rule(data=st.data())
    def abort(self, data):
        handle = data.draw(st.sampled_from(sorted(self.specs)))
        self.take(self.manager.abort(handle, self.now))
        self.forget(handle)

    @precondition(lambda self: any(tokens for tokens in self.received.values()))
    @rule(data=st.data())
    def end_one_sequence(self, data):
        """As a gateway does when it finds a stop string."""
        running = [key for key, tokens in self.received.items() if tokens and key not in self.reasons]
        if not running:
            return
        handle, index = data.draw(st.sampled_from(sorted(running)))
        self.reasons[handle, index] = None
        self.ended_by_caller.add((handle, index))
        self.take(self.manager.abort(handle, self.now, index))

    @rule(seconds=st.floats(0.0, 5.0))
    def time_passes(self, seconds):
        self.now += seconds
        self.take(self.manager.expire(self.now))
        assert all(spec.deadline is None or spec.deadline > self.now for spec in self.specs.values())

    # What the executor does

    @rule()
    def schedule(self):
        batch = self.manager.schedule(self.now)
        if batch is not None:
            self.oracle.send(batch)
            assert sum(batch.row_num_tokens) <= self.manager._limits.max_batched_tokens
            assert len(self.oracle.pending) <= 2

    @precondition(lambda self: self.oracle.pending)
    @rule()
    def result(self):
        self.take(self.manager.apply(self.oracle.run(), self.now))

    @rule(num_steps=st.integers(1, 8))
    def run_pipelined(self, num_steps):
        for _ in range(num_steps):
            self.schedule()
            self.schedule()
            if self.oracle.pending:
                self.result()

    @rule(smaller=st.booleans(), pause=st.booleans())
    def executor_restarts(self, smaller, pause):
        if self.rng.random() < 0.7:
            return  # rare, or nothing else would ever get far
        self.manager.detach_executor(self.now)
        if pause:
            assert self.manager.schedule(self.now) is None
            self.time_passes(1.0)
        num_blocks = max(4, self.capacity.num_blocks // 2 if smaller else self.capacity.num_blocks)
        self.capacity = Capacity(num_blocks, self.capacity.block_size, MAX_MODEL_LEN)
        self.oracle = Oracle(num_blocks, self.capacity.block_size, self.rng)
        outputs = self.manager.attach_executor(self.capacity, self.now)
        for handle, spec in self.specs.items():
            try:
                room = self.capacity.resolve_max_length(spec) - len(spec.prompt_token_ids)
            except InvalidRequest:
                room = 0
            self.max_tokens[handle] = min(self.max_tokens[handle], room)
        self.take(outputs)

    # What gateways see

    def take(self, outputs: Outputs) -> None:
        for update in outputs.updates:
            key = (update.handle, update.sample_index)
            assert key in self.received, "tokens for a request that is over"
            assert key not in self.reasons, "tokens after the last one"
            assert update.position == len(self.received[key]), "a gap or a repeat"
            self.received[key].extend(update.token_ids)
            if update.finish_reason is not None:
                self.reasons[key] = update.finish_reason
        for end in outputs.ends:
            self.check_end(end)

    def check_end(self, end):
        spec = self.specs[end.handle]
        if isinstance(end.error, ExecutorFailed):
            pass
        elif isinstance(end.error, InvalidRequest):
            assert self.max_tokens[end.handle] == 0
        elif end.error is not None:
            assert isinstance(end.error, DeadlineExceeded)
            assert spec.deadline is not None
            assert spec.deadline <= self.now
        else:
            sequences = [(end.handle, index) for index in range(spec.n)]
            assert all(key in self.reasons for key in sequences)
            assert end.usage.prompt_tokens == len(spec.prompt_token_ids)
            assert end.usage.completion_tokens == sum(len(self.received[key]) for key in sequences)
            assert 0 <= end.usage.cached_tokens < len(spec.prompt_token_ids)
        self.forget(end.handle)

    def forget(self, handle):
        spec = self.specs.pop(handle)
        for index in range(spec.n):
            key = (handle, index)
            received, reason = self.received.pop(key), self.reasons.pop(key, None)
            # Longer than it may be: it was before the executor became smaller.
            longest = max(self.max_tokens[handle], len(received))
            wanted = expected_output(
                spec.prompt_token_ids, handle, index, longest, spec.stop_token_ids, spec.min_tokens
            )
            if reason is None:
                assert received == wanted[: len(received)]
            else:
                assert received == wanted
                stopped = received[-1] in spec.stop_token_ids and len(received) > spec.min_tokens
                assert reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)

    @invariant()
    def integrity(self):
        if hasattr(self, "manager"):
            self.manager.check_integrity()

    def teardown(self):
        if not hasattr(self, "manager"):
            return
        for _ in range(5000):
            self.run_pipelined(1)
            if self.manager.idle:
                break
        assert not self.specs, "requests that never end"
        assert self.manager.idle
        self.schedule()  # tells the executor to forget the last ones
        if self.oracle.pending:
            self.result()
        assert not self.oracle.sequences, "the executor still holds sequences"
        state = self.manager.memory_state()
        assert state.referenced_blocks == 0, "blocks are missing at the end"
        assert state.free_blocks + state.cached_blocks == state.num_blocks
        self.integrity()


TestKVManager = KVManagerMachine.TestCase
TestKVManager.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
