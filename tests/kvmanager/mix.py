"""Everything that can happen to a KV manager, one method an event, with all that must hold checked after each.

Hypothesis (test_manager_model.py) and a seeded random driver (test_long_mixes.py) decide what happens when.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

from kvmanager.capacity import Capacity
from kvmanager.errors import DeadlineExceeded, ExecutorFailed, InvalidRequest, PinRefused, QueueFull
from kvmanager.events import Event
from kvmanager.limits import Limits
from kvmanager.manager import KVManager
from kvmanager.request import FinishReason, RequestState
from kvmanager.rooms import can_finish
from kvmanager.spec import BeamParams, EarlyStopping, PinOrder, RequestSpec, ResumedSequence, Scope
from kvmanager.step import Outputs, RequestEnd, StepBatch
from tests.kvmanager.mix_checks import Shortfalls, check_invariants, check_ranked, check_tables
from tests.kvmanager.mix_inputs import TENANTS, Burst, Order, Setting, other_quotas, some_quotas
from tests.kvmanager.observer import Observer
from tests.oracle import VOCAB_SIZE, Oracle, expected_output

MAX_MODEL_LEN = 60
MAX_WAITING_REQUESTS = 12
MIN_BLOCKS = 4
PIPELINE_DEPTH = 2


class Mix:
    """A KV manager, its executors, and its callers.

    Whatever happens: each sequence's tokens are the expected ones without a gap or a repeat, every request ends exactly
    once, every invariant holds after each event, and at the end no block is missing.

    Args:
        on_batch: told of every step that an executor is sent.
        on_event: told of every decision.
        on_end: told of every request that ends well.
    """

    def __init__(
        self,
        setting: Setting,
        on_batch: Callable[[str, StepBatch], None] = lambda name, batch: None,
        on_event: Callable[[Event], None] = lambda event: None,
        on_end: Callable[[RequestSpec], None] = lambda spec: None,
    ) -> None:
        self.rng = random.Random(setting.seed)
        self.now = 0.0
        self.capacity = Capacity(
            setting.num_blocks, setting.block_size, MAX_MODEL_LEN, num_host_blocks=setting.num_host_blocks
        )
        self.limits = Limits(setting.max_batched_tokens, setting.max_sequences, MAX_WAITING_REQUESTS)
        self._new_manager = partial(
            KVManager,
            self.limits,
            policy=setting.policy,
            preemption=setting.preemption,
            prefix_caching=setting.prefix_caching,
            on_event=on_event,
        )
        self._quotas = some_quotas(self.rng, setting.num_blocks) if setting.quotas else {}
        self._shortfalls = Shortfalls()
        self.manager = self._new_manager(quotas=self._quotas)
        self.resubmitted: set[int] = set()
        """Requests that the last KV manager to crash had accepted."""
        self.num_adopted = 0
        """Blocks that were cached on executors when a KV manager took them over."""
        self.oracles: dict[str, Oracle] = {}
        self.specs: dict[int, RequestSpec] = {}
        self._speeds = setting.speeds
        self._on_batch = on_batch
        self._on_end = on_end
        self._max_tokens: dict[int, int] = {}
        self._received: dict[tuple[int, int], list[int]] = {}
        self._reasons: dict[tuple[int, int], FinishReason | None] = {}
        self._scores: dict[tuple[int, int], float | None] = {}
        self._shortened: set[int] = set()
        self._executors_changed = False
        self._prompts: list[list[int]] = []
        self._handles = 0
        self._watched = setting.watched
        self._observer = Observer(self.manager) if setting.watched else None
        for index in range(setting.num_executors):
            self._attach(f"executor-{index}", self.capacity)

    # What callers do

    def submit(self, order: Order) -> None:
        self._submit(order, self._some_prompt(order.own_length, order.common))

    def burst(self, burst: Burst) -> None:
        """Requests with a common beginning, at once; some leave while their first chunks are under way."""
        common = self._some_prompt(burst.common, burst.known)[: burst.common]
        first = self._handles + 1
        for order in burst.orders:
            self._submit(order, common + self._some_tokens(order.own_length))
        for _ in range(burst.scheduled):
            self.schedule()
        for index in burst.leaving:
            if first + index in self.specs:
                self.abort(first + index)

    def _submit(self, order: Order, prompt: list[int]) -> None:
        stop = frozenset(self.rng.sample(range(VOCAB_SIZE), 3)) if order.stops else frozenset()
        n, best_of, beam = 1, 0, None
        max_tokens, min_tokens = order.max_tokens, order.min_tokens
        if order.method == "samples":
            n = order.width
        elif order.method == "best_of":
            n, best_of = self.rng.randrange(1, order.width), order.width
        elif order.method == "beams":
            stopping = self.rng.choice(list(EarlyStopping))
            beam = BeamParams(order.width, self.rng.choice([0.0, 0.5, 1.0, 2.0]), stopping)
            n = self.rng.randrange(1, order.width + 1)
            min_tokens = 0  # the executor's affair
            max_tokens = min(max_tokens, 8)
        self._send(
            RequestSpec(
                self._new_handle(),
                prompt,
                self._some_spans(len(prompt), order.scopes),
                tenant=self.rng.choice(TENANTS),
                n=n,
                best_of=best_of,
                beam=beam,
                max_tokens=max_tokens,
                min_tokens=min(min_tokens, max_tokens) if max_tokens else min_tokens,
                stop_token_ids=stop,
                sampling=self.rng.randrange(3),
                deadline=None if order.lifetime is None else self.now + order.lifetime,
                priority=order.priority,
                report_progress=self.rng.random() < 0.3,
            )
        )

    def submit_the_same_again(self, copies: int) -> None:
        """Requests that compute the same blocks at the same time, to their last token."""
        known = [spec for spec in self.specs.values() if spec.pin is None]
        if known:
            spec = self.rng.choice(known)
            for _ in range(copies):
                self._send(replace(spec, handle=self._new_handle(), deadline=None))

    def pin(self, own_length: int, common: int, scope: Scope, ttl: float) -> None:
        prompt = self._some_prompt(own_length, common)
        handle = self._new_handle()
        order = PinOrder(f"pin-{handle}", ttl)
        spans = ((len(prompt), scope),)
        self._send(RequestSpec(handle, prompt, spans, self.rng.choice(TENANTS), max_tokens=1, sampling=0, pin=order))

    def unpin(self, share: float) -> None:
        """Lets go of a part of all pins."""
        for pin in list(self.manager.pins):
            if self.rng.random() < share:
                assert self.manager.unpin(pin.spec.tenant, pin.pin_id, self.now) is True
                self.check()
        assert self.manager.unpin("nobody", "nothing", self.now) is False

    def abort(self, handle: int) -> None:
        outputs = self.manager.abort(handle, self.now)
        assert not outputs.ends, "an aborted request ends without a word"
        self._executors_changed = False
        self._forget(handle)
        self.check()

    def running_outputs(self) -> list[tuple[int, int]]:
        """Sequences that have tokens and go on."""
        return sorted(key for key, tokens in self._received.items() if tokens and key not in self._reasons)

    def end_one_sequence(self, key: tuple[int, int]) -> None:
        """As a gateway does when it finds a stop string."""
        handle, index = key
        self._reasons[key] = None
        self._take(self.manager.abort(handle, self.now, index))

    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self._take(self.manager.expire(self.now))
        assert all(spec.deadline is None or spec.deadline > self.now for spec in self.specs.values())
        assert all(pin.expires is None or pin.expires > self.now for pin in self.manager.pins)

    def _new_handle(self) -> int:
        self._handles += 1
        return self._handles

    def _some_prompt(self, own_length: int, common: int) -> list[int]:
        start = self.rng.choice(self._prompts)[:common] if self._prompts else []
        return start + self._some_tokens(own_length)

    def _some_tokens(self, length: int) -> list[int]:
        return [self.rng.randrange(VOCAB_SIZE) for _ in range(length)]

    def _some_spans(self, length: int, scopes: tuple[Scope, ...]) -> tuple[tuple[int, Scope], ...]:
        borders = sorted(self.rng.randrange(length + 1) for _ in scopes[1:])
        edges = [0, *borders, length]
        return tuple((end - start, scope) for (start, end), scope in zip(pairwise(edges), scopes, strict=True))

    def _send(self, spec: RequestSpec) -> None:
        try:
            self.manager.submit(spec, self.now)
        except (InvalidRequest, QueueFull, PinRefused):
            self.check()
            return
        handle = spec.handle
        self._prompts.append(spec.prompt_token_ids)
        self.specs[handle] = spec
        self._max_tokens[handle] = self._room(spec)
        for index in range(spec.n):
            self._received[handle, index] = []
        self.check()

    def _room(self, spec: RequestSpec) -> int:
        """Output tokens that each of its sequences may have."""
        return self.manager._requests[spec.handle].max_length - len(spec.prompt_token_ids)

    # What executors do

    def schedule(self) -> None:
        """A step for each executor that can take one."""
        for name in self.rng.sample(sorted(self.oracles), len(self.oracles)):
            batch = self.manager.schedule(name, self.now)
            if batch is not None:
                self.oracles[name].send(batch)
                self._on_batch(name, batch)
                assert sum(batch.row_num_tokens) <= self.limits.max_batched_tokens
                assert len(batch.row_sequence_ids) <= self.limits.max_batched_tokens
                self.check()
            assert len(self.oracles[name].pending) <= PIPELINE_DEPTH

    def result(self) -> None:
        """One executor is done with a step."""
        busy = [name for name, oracle in self.oracles.items() if oracle.pending]
        if busy:
            self._deliver(self.rng.choice(busy))

    def run_pipelined(self, num_steps: int) -> None:
        """So many steps of every executor, as they go when nothing else happens."""
        for _ in range(num_steps):
            self.schedule()
            self.schedule()
            for name, oracle in list(self.oracles.items()):
                if oracle.pending:
                    self._deliver(name)
            self.now += 0.01

    def _deliver(self, name: str) -> None:
        oracle, replica = self.oracles[name], self.manager.replicas[name]
        result = oracle.run()
        if result is None:
            return
        # What waits for a draining executor goes elsewhere, which may be smaller.
        self._take(self.manager.apply(name, result, self.now), executors_changed=replica.draining)
        if not oracle.pending:
            check_tables(oracle, replica)
            oracle.record.check_complete(replica.memory)

    def executors_stall(self, num_runs: int) -> None:
        for oracle in self.oracles.values():
            if self.rng.random() < 0.5:
                oracle.stall(num_runs)

    def executor_restarts(self, smaller: bool, pause: bool) -> None:
        """An executor is lost, with all it held, and comes back."""
        if not self.oracles:
            return
        name = self.rng.choice(sorted(self.oracles))
        num_blocks = self.manager.replicas[name].memory.capacity.num_blocks
        self._detach(name)
        if pause:
            assert self.manager.schedule(name, self.now) is None
            self.run_pipelined(1)
            self.time_passes(1.0)
        self._attach(name, replace(self.capacity, num_blocks=max(MIN_BLOCKS, num_blocks // (2 if smaller else 1))))

    def executor_joins(self) -> None:
        if len(self.oracles) <= 3:
            self._attach(f"extra-{self._handles}-{self.now}", self.capacity)

    def executor_drains(self) -> None:
        if self.oracles:
            name = self.rng.choice(sorted(self.oracles))
            self._take(self.manager.drain_executor(name, self.now), executors_changed=True)

    def drained_executors_leave(self) -> None:
        for name, replica in list(self.manager.replicas.items()):
            if replica.draining and replica.idle:
                self._detach(name)

    def connection_breaks(self, pause: bool) -> None:
        """The KV manager has to attach to an executor anew, which has lost nothing but its sequences."""
        if not self.oracles:
            return
        name = self.rng.choice(sorted(self.oracles))
        oracle = self.oracles[name]
        if pause:
            self._detach(name)
            self.run_pipelined(1)
        self._attach_again(name, oracle)

    def _attach(self, name: str, capacity: Capacity) -> None:
        outputs = self.manager.attach_executor(name, capacity, self.now, self._speeds)
        self.oracles[name] = Oracle(capacity.num_blocks, capacity.block_size, self.rng, capacity.num_host_blocks)
        self._take(outputs, executors_changed=True)

    def _attach_again(self, name: str, oracle: Oracle) -> None:
        stored = oracle.describe_blocks()
        capacity = replace(self.capacity, num_blocks=oracle.num_blocks, num_host_blocks=oracle.num_host_blocks)
        outputs = self.manager.attach_executor(name, capacity, self.now, self._speeds, stored)
        self.oracles[name] = oracle
        memory = self.manager.replicas[name].memory
        oracle.record.check_complete(memory)
        self.num_adopted += len(memory.device.cache) + len(memory.host.cache)
        self._take(outputs, executors_changed=True)

    def _detach(self, name: str) -> None:
        del self.oracles[name]
        self._take(self.manager.detach_executor(name, self.now), executors_changed=True)

    # The KV manager itself

    def manager_crashes(self) -> None:
        """A new KV manager takes the executors over, and gateways submit their requests again, with what they have."""
        if not self.oracles:
            return
        replicas = self.manager.replicas.values()
        nobody_could = {
            handle
            for handle, request in self.manager._requests.items()
            if not any(can_finish(request, replica) for replica in replicas)
        }
        self.manager = self._new_manager(quotas=self._quotas)
        self._observer = Observer(self.manager) if self._watched else None
        self._executors_changed = True
        specs, self.specs = self.specs, {}
        for name, oracle in self.oracles.items():
            self._attach_again(name, oracle)
        self.resubmitted = set(specs)
        for handle in sorted(self.rng.sample(sorted(specs), len(specs)), key=lambda each: specs[each].pin is not None):
            self.specs[handle] = specs[handle]
            self._resubmit(specs[handle], may_fail=handle in nobody_could or specs[handle].pin is not None)
        self.check()

    def _resubmit(self, spec: RequestSpec, may_fail: bool) -> None:
        handle = spec.handle
        received = [self._received[handle, index] for index in range(spec.n)]
        assert all(received) or not any(received)
        resumed = ()
        if any(received):
            ended = [FinishReason.STOP if (handle, index) in self._reasons else None for index in range(spec.n)]
            resumed = tuple(map(ResumedSequence, map(list, received), ended))
        try:
            outputs = self.manager.submit(replace(spec, resubmitted=True, resumed=resumed), self.now)
        except (InvalidRequest, PinRefused):
            assert may_fail, "it was accepted before"
            self._forget(handle)
            return
        if handle in self.manager._requests:
            room = self._room(spec)
            if room < self._max_tokens[handle]:
                self._shortened.add(handle)
            self._max_tokens[handle] = room
        self._take(outputs, executors_changed=True)

    def quotas_change(self) -> None:
        """Tenants get more, or less, or have nothing set any more."""
        self._quotas = other_quotas(self.rng, self.capacity.num_blocks)
        begun = {handle for handle in self.specs if self.manager._requests[handle].state is not RequestState.WAITING}
        self._take(self.manager.set_quotas(self._quotas, self.now), executors_changed=True)
        assert begun <= self.specs.keys(), "what has begun goes on"

    # What gateways hear

    def _take(self, outputs: Outputs, executors_changed: bool = False) -> None:
        self._executors_changed = executors_changed
        for sequence in outputs.tokens:
            key = (sequence.handle, sequence.sample_index)
            self._extend(key, sequence.num_output - 1, [sequence.token_ids[-1]])
        for update in outputs.updates:
            key = (update.handle, update.sample_index)
            self._extend(key, update.position, update.token_ids)
            if update.finish_reason is not None:
                self._reasons[key] = update.finish_reason
                self._scores[key] = update.score
        for progress in outputs.progress:
            spec = self.specs[progress.handle]
            assert spec.report_progress
            assert 0 < progress.computed_tokens <= progress.prompt_tokens == len(spec.prompt_token_ids)
        for end in outputs.ends:
            self._check_end(end)
        if executors_changed:
            self._note_shortened()
        self.check()

    def _extend(self, key: tuple[int, int], position: int, token_ids: list[int]) -> None:
        assert key in self._received, "tokens for a request that is over"
        assert key not in self._reasons, "tokens after the last one"
        assert position == len(self._received[key]), "a gap or a repeat"
        self._received[key].extend(token_ids)

    def _note_shortened(self) -> None:
        """Executors that came or went may have shortened what each sequence may get."""
        for handle, spec in self.specs.items():
            room = self._room(spec)
            assert 0 < room <= self._max_tokens[handle]
            if room < self._max_tokens[handle]:
                self._shortened.add(handle)
                self._max_tokens[handle] = room

    def _check_end(self, end: RequestEnd) -> None:
        spec = self.specs[end.handle]
        if end.usage is not None:
            assert end.usage.prompt_tokens == len(spec.prompt_token_ids)
            assert 0 <= end.usage.cached_tokens < len(spec.prompt_token_ids)
            if spec.pin is None:
                sequences = [(end.handle, index) for index in range(spec.n)]
                assert all(key in self._reasons for key in sequences)
                if not spec.best_of:
                    assert end.usage.completion_tokens == sum(len(self._received[key]) for key in sequences)
            self._on_end(spec)
        elif isinstance(end.error, DeadlineExceeded):
            assert spec.deadline is not None
            assert spec.deadline <= self.now
        else:
            assert isinstance(end.error, ExecutorFailed | InvalidRequest | PinRefused)
            assert self._executors_changed or spec.pin is not None, "it was accepted"
        self._forget(end.handle, complete=end.error is None)

    def _forget(self, handle: int, complete: bool = False) -> None:
        spec = self.specs.pop(handle)
        max_tokens = self._max_tokens.pop(handle)
        was_shortened = handle in self._shortened or self._executors_changed
        received = [self._received.pop((handle, index)) for index in range(spec.n)]
        reasons = [self._reasons.pop((handle, index), None) for index in range(spec.n)]
        scores = [self._scores.pop((handle, index), None) for index in range(spec.n)]
        if spec.pin is not None:
            assert not any(received)
        elif spec.beam is None and not spec.best_of:
            for index in range(spec.n):
                self._check_sequence(spec, index, max_tokens, received[index], reasons[index])
        elif not complete:
            assert not any(received), "ranked sequences come at the end"
        elif not was_shortened:  # what was already longer was ended as it was
            check_ranked(spec, max_tokens, received, scores)

    def _check_sequence(
        self, spec: RequestSpec, index: int, max_tokens: int, received: list[int], reason: FinishReason | None
    ) -> None:
        # Longer than it may be: it was before the executor became smaller.
        longest = max(max_tokens, len(received))
        prompt, stop = spec.prompt_token_ids, spec.stop_token_ids
        wanted = expected_output(prompt, spec.sampling, index, longest, stop, spec.min_tokens)
        cut = reason is FinishReason.LENGTH and self._executors_changed  # the executors that are left are smaller
        if reason is None or cut:
            assert received == wanted[: len(received)]
            return
        assert received == wanted
        stopped = received[-1] in stop and len(received) > spec.min_tokens
        assert reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)

    # What must hold at any time

    def check(self) -> None:
        check_invariants(self.manager, self._shortfalls)
        if self._observer is not None:
            self._observer.check()

    # The end

    def finish(self) -> None:
        """Until every request is over; then nothing may be left."""
        if all(replica.draining for replica in self.manager.replicas.values()):
            self._attach("last", replace(self.capacity, num_blocks=64))
        for _ in range(5000):
            self.run_pipelined(1)
            if self.manager.idle and not self.specs:
                break
        assert not self.specs, "requests that never end"
        assert self.manager.idle
        self.unpin(share=1.0)
        for _ in range(3):
            self.run_pipelined(1)  # tells the executors to forget the last ones
        for name, oracle in self.oracles.items():
            assert not oracle.sequences, "the executor still holds sequences"
            memory = self.manager.replicas[name].memory
            memory.copies.start_step(10**9)  # nothing is read any more
            assert memory.device.pool.num_referenced == 0, "blocks are missing at the end"
            assert memory.host.pool.num_referenced == 0, "host blocks are missing at the end"
        self.check()
        assert not any(replica.memory.pool.accounts.changing for replica in self.manager.replicas.values())
        if self._observer is not None:
            self._observer.close()
