"""The KV manager against oracle executors, under every mixture of events that Hypothesis comes up with."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvmanager.accounts import Quota
from kvmanager.capacity import Capacity
from kvmanager.cost_model import Preemption
from kvmanager.errors import DeadlineExceeded, ExecutorFailed, InvalidRequest, PinRefused, QueueFull
from kvmanager.manager import KVManager
from kvmanager.policies import POLICIES
from kvmanager.request import FinishReason
from kvmanager.scheduler import Limits
from kvmanager.spec import BeamParams, EarlyStopping, PinOrder, RequestSpec, Scope
from kvmanager.step import Outputs, Speeds
from kvmanager.views import MemoryWatch, block_views
from tests.oracle import VOCAB_SIZE, Oracle, expected_beams, expected_best_of, expected_output

MAX_MODEL_LEN = 60
TENANTS = ("acme", "beta", "gamma")
SCOPES = [
    Scope(b"acme", "acme", 1),
    Scope(b"acme", "acme", 1),
    Scope(b"acme/app", "acme", 2),
    Scope(b"beta", "beta", 1),
    Scope(b"docs", "shared:docs", 0),
]
SPEEDS = [
    None,
    Speeds(100.0, 1000.0, 1000.0, 1000.0),  # swapping is cheaper
    Speeds(1000.0, 1.0, 1.0, 1000.0),  # recomputing is
    Speeds(100.0, 100.0, 100.0, 100.0),  # it depends
]


class KVManagerMachine(RuleBasedStateMachine):
    """Submits everything there is to submit, aborts, pins, loses, drains and adds executors, and delivers results as
    early or late as the pipeline allows.

    Whatever happens: each sequence's tokens are the expected ones without a gap or a repeat, every request ends exactly
    once, every invariant holds after each event, and at the end no block is missing.
    """

    @initialize(
        num_blocks=st.integers(4, 40),
        num_host_blocks=st.sampled_from([0, 0, 3, 10, 40]),
        block_size=st.sampled_from([1, 2, 3, 4, 8]),
        num_executors=st.sampled_from([1, 1, 1, 2, 3]),
        max_batched_tokens=st.integers(8, 40),
        max_sequences=st.integers(4, 8),
        prefix_caching=st.sampled_from([True, True, True, False]),
        policy=st.sampled_from(POLICIES),
        preemption=st.sampled_from(list(Preemption)),
        speeds=st.sampled_from(SPEEDS),
        quotas=st.booleans(),
        watched=st.booleans(),
        seed=st.integers(0, 2**32),
    )
    def start(
        self,
        num_blocks,
        num_host_blocks,
        block_size,
        num_executors,
        max_batched_tokens,
        max_sequences,
        prefix_caching,
        policy,
        preemption,
        speeds,
        quotas,
        watched,
        seed,
    ):
        self.rng = random.Random(seed)
        self.now = 0.0
        self.capacity = Capacity(num_blocks, block_size, MAX_MODEL_LEN, num_host_blocks)
        self.limits = Limits(max_batched_tokens, max_sequences, max_waiting_requests=12)
        self.speeds = speeds
        self.manager = KVManager(
            self.limits,
            policy=policy,
            preemption=preemption,
            quotas=self.some_quotas(num_blocks) if quotas else None,
            prefix_caching=prefix_caching,
        )
        self.oracles: dict[str, Oracle] = {}
        self.specs: dict[int, RequestSpec] = {}
        self.max_tokens: dict[int, int] = {}
        self.received: dict[tuple[int, int], list[int]] = {}
        self.reasons: dict[tuple[int, int], FinishReason | None] = {}
        self.scores: dict[tuple[int, int], float | None] = {}
        self.shortened: set[int] = set()
        self.prompts: list[list[int]] = []
        self.handles = 0
        for index in range(num_executors):
            self.attach(f"executor-{index}", self.capacity)
        self.watch = MemoryWatch(self.manager) if watched else None
        self.map: dict[str, dict] = {}

    def some_quotas(self, num_blocks):
        reserved = self.rng.randrange(0, num_blocks // 3 + 1)
        limit = self.rng.randrange(max(2, num_blocks // 2), num_blocks + 1)
        return {"acme": Quota(reserved_blocks=reserved, weight=2.0), "beta": Quota(max_blocks=limit)}

    def attach(self, name, capacity):
        outputs = self.manager.attach_executor(name, capacity, self.now, self.speeds)
        self.oracles[name] = Oracle(capacity.num_blocks, capacity.block_size, self.rng, capacity.num_host_blocks)
        self.take(outputs, executors_changed=True)

    # What a caller does

    @rule(
        own_length=st.integers(1, 30),
        common=st.integers(0, 30),
        method=st.sampled_from(["one", "one", "samples", "best_of", "beams"]),
        width=st.integers(2, 4),
        max_tokens=st.integers(0, 25),
        min_tokens=st.integers(0, 3),
        scopes=st.lists(st.sampled_from(SCOPES), min_size=1, max_size=3),
        stops=st.booleans(),
        lifetime=st.one_of(st.none(), st.none(), st.floats(0.5, 30.0)),
        priority=st.integers(-2, 2),
    )
    def submit(self, own_length, common, method, width, max_tokens, min_tokens, scopes, stops, lifetime, priority):
        self.handles += 1
        handle = self.handles
        prompt = self.some_prompt(own_length, common)
        stop = frozenset(self.rng.sample(range(VOCAB_SIZE), 3)) if stops else frozenset()
        n = best_of = 1
        beam = None
        if method == "samples":
            n = best_of = width
        elif method == "best_of":
            n, best_of = self.rng.randrange(1, width), width
        elif method == "beams":
            stopping = self.rng.choice(list(EarlyStopping))
            beam = BeamParams(width, self.rng.choice([0.0, 0.5, 1.0, 2.0]), stopping)
            n = self.rng.randrange(1, width + 1)
            min_tokens = 0  # the executor's affair
            max_tokens = min(max_tokens, 8)
        spec = RequestSpec(
            handle,
            prompt,
            self.some_spans(len(prompt), scopes),
            tenant=self.rng.choice(TENANTS),
            n=n,
            best_of=best_of if best_of > n else 0,
            beam=beam,
            max_tokens=max_tokens,
            min_tokens=min(min_tokens, max_tokens) if max_tokens else min_tokens,
            stop_token_ids=stop,
            sampling=self.rng.randrange(3),
            deadline=None if lifetime is None else self.now + lifetime,
            priority=priority,
            report_progress=self.rng.random() < 0.3,
        )
        self.send(spec)

    @precondition(lambda self: self.specs)
    @rule(copies=st.integers(1, 3))
    def submit_the_same_again(self, copies):
        """Requests that compute the same blocks at the same time, to their last token."""
        spec = self.rng.choice([spec for spec in self.specs.values() if spec.pin is None] or [None])
        for _ in range(copies if spec else 0):
            self.handles += 1
            self.send(replace(spec, handle=self.handles, deadline=None))

    @rule(length=st.integers(1, 30), common=st.integers(0, 30), scope=st.sampled_from(SCOPES), ttl=st.floats(1.0, 50.0))
    def pin(self, length, common, scope, ttl):
        self.handles += 1
        prompt = self.some_prompt(length, common)
        order = PinOrder(f"pin-{self.handles}", ttl)
        tenant = self.rng.choice(TENANTS)
        self.send(
            RequestSpec(
                self.handles, prompt, ((len(prompt), scope),), tenant=tenant, max_tokens=1, sampling=0, pin=order
            )
        )

    @rule()
    def unpin(self):
        for pin in list(self.manager.pins):
            if self.rng.random() < 0.5:
                assert self.manager.unpin(pin.spec.tenant, pin.pin_id, self.now) is True
        assert self.manager.unpin("nobody", "nothing", self.now) is False

    def some_prompt(self, own_length, common):
        start = self.rng.choice(self.prompts)[:common] if self.prompts else []
        return start + [self.rng.randrange(VOCAB_SIZE) for _ in range(own_length)]

    def some_spans(self, length, scopes):
        borders = sorted(self.rng.randrange(length + 1) for _ in scopes[1:])
        ends = [*borders, length]
        return tuple((end - start, scope) for start, end, scope in zip([0, *borders], ends, scopes, strict=True))

    def send(self, spec):
        try:
            self.manager.submit(spec, self.now)
        except (InvalidRequest, QueueFull, PinRefused):
            self.manager.check_integrity()
            return
        handle = spec.handle
        request = self.manager._requests[handle]
        self.prompts.append(spec.prompt_token_ids)
        self.specs[handle] = spec
        self.max_tokens[handle] = request.max_length - len(spec.prompt_token_ids)
        for index in range(spec.n):
            self.received[handle, index] = []

    @precondition(lambda self: self.specs)
    @rule(data=st.data())
    def abort(self, data):
        handle = data.draw(st.sampled_from(sorted(self.specs)))
        outputs = self.manager.abort(handle, self.now)
        assert not outputs.ends, "an aborted request ends without a word"
        self.executors_changed = False
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
        self.take(self.manager.abort(handle, self.now, index))

    @rule(seconds=st.floats(0.0, 5.0))
    def time_passes(self, seconds):
        self.now += seconds
        self.take(self.manager.expire(self.now))
        assert all(spec.deadline is None or spec.deadline > self.now for spec in self.specs.values())
        assert all(pin.expires is None or pin.expires > self.now for pin in self.manager.pins)

    # What executors do

    @rule()
    def schedule(self):
        for name in self.rng.sample(sorted(self.oracles), len(self.oracles)):
            batch = self.manager.schedule(name, self.now)
            if batch is not None:
                self.oracles[name].send(batch)
                assert sum(batch.row_num_tokens) <= self.limits.max_batched_tokens
                assert len(batch.row_sequence_ids) <= self.limits.max_batched_tokens
            assert len(self.oracles[name].pending) <= 2

    @rule()
    def result(self):
        busy = [name for name, oracle in self.oracles.items() if oracle.pending]
        if busy:
            self.deliver(self.rng.choice(busy))

    def deliver(self, name):
        result = self.oracles[name].run()
        if result is not None:
            draining = self.manager.replicas[name].draining  # what waits there goes elsewhere, which may be smaller
            self.take(self.manager.apply(name, result, self.now), executors_changed=draining)

    @rule(num_steps=st.integers(1, 8))
    def run_pipelined(self, num_steps):
        for _ in range(num_steps):
            self.schedule()
            self.schedule()
            for name, oracle in list(self.oracles.items()):
                if oracle.pending:
                    self.deliver(name)
            self.now += 0.01

    @rule(num_runs=st.integers(1, 3))
    def executor_stalls(self, num_runs):
        for oracle in self.oracles.values():
            if self.rng.random() < 0.5:
                oracle.stall(num_runs)

    @rule(smaller=st.booleans(), pause=st.booleans())
    def executor_restarts(self, smaller, pause):
        if self.rng.random() < 0.7 or not self.oracles:
            return  # rare, or nothing else would ever get far
        name = self.rng.choice(sorted(self.oracles))
        num_blocks = self.manager.replicas[name].memory.capacity.num_blocks
        del self.oracles[name]
        self.take(self.manager.detach_executor(name, self.now), executors_changed=True)
        if pause:
            assert self.manager.schedule(name, self.now) is None
            self.run_pipelined(1)
            self.time_passes(1.0)
        num_blocks = max(4, num_blocks // 2 if smaller else num_blocks)
        old = self.capacity
        self.attach(name, Capacity(num_blocks, old.block_size, old.max_model_len, old.num_host_blocks))

    @rule()
    def executor_joins(self):
        if self.rng.random() < 0.8 or len(self.oracles) > 3:
            return
        self.attach(f"extra-{self.handles}-{self.now}", self.capacity)

    @rule()
    def executor_drains(self):
        if self.rng.random() < 0.8 or not self.oracles:
            return
        name = self.rng.choice(sorted(self.oracles))
        self.take(self.manager.drain_executor(name, self.now), executors_changed=True)

    @rule()
    def drained_executors_leave(self):
        for name, replica in list(self.manager.replicas.items()):
            if replica.draining and replica.idle:
                del self.oracles[name]
                self.take(self.manager.detach_executor(name, self.now), executors_changed=True)

    # What gateways see

    def take(self, outputs: Outputs, executors_changed: bool = False) -> None:
        self.executors_changed = executors_changed
        for handle, index, position, token_id in outputs.tokens:
            self.extend((handle, index), position, [token_id])
        for update in outputs.updates:
            key = (update.handle, update.sample_index)
            self.extend(key, update.position, update.token_ids)
            if update.finish_reason is not None:
                self.reasons[key] = update.finish_reason
                self.scores[key] = update.score
        for progress in outputs.progress:
            spec = self.specs[progress.handle]
            assert spec.report_progress
            assert 0 < progress.computed_tokens <= progress.prompt_tokens == len(spec.prompt_token_ids)
        for end in outputs.ends:
            self.check_end(end)
        # Executors that came or went may have shortened what each sequence may get.
        for handle in self.specs:
            request = self.manager._requests[handle]
            room = request.max_length - len(request.spec.prompt_token_ids)
            assert room <= self.max_tokens[handle]
            if room < self.max_tokens[handle]:
                assert request.max_length  # never nothing
                self.shortened.add(handle)
                self.max_tokens[handle] = room

    def extend(self, key, position, token_ids):
        assert key in self.received, "tokens for a request that is over"
        assert key not in self.reasons, "tokens after the last one"
        assert position == len(self.received[key]), "a gap or a repeat"
        self.received[key].extend(token_ids)

    def check_end(self, end):
        spec = self.specs[end.handle]
        if isinstance(end.error, (ExecutorFailed, InvalidRequest, PinRefused)):
            pass
        elif end.error is not None:
            assert isinstance(end.error, DeadlineExceeded)
            assert spec.deadline is not None
            assert spec.deadline <= self.now
        else:
            assert end.usage.prompt_tokens == len(spec.prompt_token_ids)
            assert 0 <= end.usage.cached_tokens < len(spec.prompt_token_ids)
            if spec.pin is None:
                sequences = [(end.handle, index) for index in range(spec.n)]
                assert all(key in self.reasons for key in sequences)
                if not spec.best_of:
                    assert end.usage.completion_tokens == sum(len(self.received[key]) for key in sequences)
        self.forget(end.handle, complete=end.error is None)

    def forget(self, handle, complete=False):
        spec = self.specs.pop(handle)
        max_tokens = self.max_tokens.pop(handle)
        was_shortened = handle in self.shortened or self.executors_changed
        received = [self.received.pop((handle, index)) for index in range(spec.n)]
        reasons = [self.reasons.pop((handle, index), None) for index in range(spec.n)]
        scores = [self.scores.pop((handle, index), None) for index in range(spec.n)]
        if spec.pin is not None:
            assert not any(received)
        elif spec.beam is not None or spec.best_of:
            self.check_ranked(spec, max_tokens, received, scores, complete, was_shortened)
        else:
            for index in range(spec.n):
                self.check_sequence(spec, index, max_tokens, received[index], reasons[index])

    def check_sequence(self, spec, index, max_tokens, received, reason):
        # Longer than it may be: it was before the executor became smaller.
        longest = max(max_tokens, len(received))
        prompt, stop = spec.prompt_token_ids, spec.stop_token_ids
        wanted = expected_output(prompt, spec.sampling, index, longest, stop, spec.min_tokens)
        cut = reason is FinishReason.LENGTH and self.executors_changed  # the executors that are left are smaller
        if reason is None or cut:
            assert received == wanted[: len(received)]
        else:
            assert received == wanted
            stopped = received[-1] in stop and len(received) > spec.min_tokens
            assert reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)

    def check_ranked(self, spec, max_tokens, received, scores, complete, was_shortened):
        if not complete:
            assert not any(received), "ranked sequences come at the end"
            return
        if was_shortened:
            return  # what was already longer was ended as it was
        prompt, stop = spec.prompt_token_ids, spec.stop_token_ids
        if spec.beam is not None:
            wanted = expected_beams(prompt, spec.sampling, spec.beam, max_tokens, stop, spec.n)
        else:
            wanted = expected_best_of(prompt, spec.sampling, spec.n, spec.best_of, max_tokens, stop, spec.min_tokens)
        assert received == [each.token_ids for each in wanted]
        assert scores == pytest.approx([each.score for each in wanted])

    # What must always hold

    @invariant()
    def integrity(self):
        if hasattr(self, "manager"):
            self.manager.check_integrity()

    @invariant()
    def the_watched_map_is_the_real_one(self):
        if getattr(self, "watch", None) is None:
            return
        for change in self.watch.changes():
            if change.removed:
                del self.map[change.executor]
                continue
            if change.snapshot:
                self.map[change.executor] = {}
            blocks = self.map[change.executor]
            blocks.update({(block.tier, block.block_id): block for block in change.blocks})
        assert self.map.keys() == self.manager.replicas.keys()
        for name, replica in self.manager.replicas.items():
            assert list(self.map[name].values()) == block_views(replica)

    def teardown(self):
        if not hasattr(self, "manager"):
            return
        if not any(not replica.draining for replica in self.manager.replicas.values()):
            self.attach("last", Capacity(64, self.capacity.block_size, MAX_MODEL_LEN))
        for _ in range(5000):
            self.run_pipelined(1)
            if self.manager.idle and not self.specs:
                break
        assert not self.specs, "requests that never end"
        assert self.manager.idle
        self.unpin_all()
        for _ in range(3):
            self.run_pipelined(1)  # tells the executors to forget the last ones
        for name, oracle in self.oracles.items():
            assert not oracle.sequences, "the executor still holds sequences"
            memory = self.manager.replicas[name].memory
            memory.copies.start_step(10**9)  # nothing is read any more
            assert memory.device.pool.num_referenced == 0, "blocks are missing at the end"
            assert memory.host.pool.num_referenced == 0, "host blocks are missing at the end"
        self.integrity()
        if self.watch is not None:
            self.watch.close()
            assert not any(replica.memory.pool.journals for replica in self.manager.replicas.values())

    def unpin_all(self):
        for pin in list(self.manager.pins):
            self.manager.unpin(pin.spec.tenant, pin.pin_id, self.now)


TestKVManager = KVManagerMachine.TestCase
TestKVManager.settings = settings(
    max_examples=150, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
