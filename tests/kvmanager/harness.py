"""Drives a KV manager with oracle executors, step by step, and checks everything that gateways would hear."""

from __future__ import annotations

import random
from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import partial

from kvmanager.accounts import Quota
from kvmanager.beam_search import Hypothesis
from kvmanager.capacity import Capacity
from kvmanager.content import Identify, block_identity
from kvmanager.cost_model import Preemption
from kvmanager.counters import Counters
from kvmanager.events import Event, EventKind
from kvmanager.limits import Limits
from kvmanager.manager import KVManager
from kvmanager.replica import Replica
from kvmanager.request import FinishReason, Request
from kvmanager.request_times import RequestTimes
from kvmanager.spec import PinOrder, RequestSpec, ResumedSequence, Scope
from kvmanager.step import Outputs, Progress, Speeds, StepBatch, Usage
from tests.oracle import VOCAB_SIZE, Oracle, RankedOutput, expected_beams, expected_best_of, expected_output

FIRST = "executor-0"


class Harness:
    """A KV manager and its executors. Everything that gateways would hear is collected and checked for gaps."""

    def __init__(
        self,
        num_blocks: int = 64,
        block_size: int = 4,
        max_model_len: int = 200,
        max_batched_tokens: int = 64,
        max_sequences: int = 16,
        max_waiting_requests: int = 100,
        max_waiting_tokens: int = 0,
        max_waiting_requests_per_tenant: int = 0,
        max_waiting_tokens_per_tenant: int = 0,
        prefix_caching: bool = True,
        seed: int = 0,
        num_host_blocks: int = 0,
        num_executors: int = 1,
        policy: str = "fcfs",
        preemption: Preemption = Preemption.AUTO,
        quotas: Mapping[str, Quota] | None = None,
        speeds: Speeds | None = None,
        identify: Identify = block_identity,
    ) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.capacity = Capacity(num_blocks, block_size, max_model_len, num_host_blocks)
        self.speeds = speeds
        self.events: list[Event] = []
        self._identify = identify
        self._new_manager = partial(
            KVManager,
            Limits(
                max_batched_tokens,
                max_sequences,
                max_waiting_requests,
                max_waiting_tokens,
                max_waiting_requests_per_tenant,
                max_waiting_tokens_per_tenant,
            ),
            policy=policy,
            preemption=preemption,
            quotas=quotas,
            prefix_caching=prefix_caching,
            on_event=self.events.append,
            identify=identify,
        )
        self.manager = self._new_manager()
        self.oracles: dict[str, Oracle] = {}
        self.specs: dict[Hashable, RequestSpec] = {}
        self.output: dict[tuple[Hashable, int], list[int]] = {}
        self.reasons: dict[tuple[Hashable, int], FinishReason] = {}
        self.scores: dict[tuple[Hashable, int], float] = {}
        self.usage: dict[Hashable, Usage] = {}
        self.times: dict[Hashable, RequestTimes] = {}
        self.errors: dict[Hashable, Exception] = {}
        self.progress: list[Progress] = []
        for index in range(num_executors):
            self.attach(f"executor-{index}")

    @property
    def oracle(self) -> Oracle:
        return self.oracles[FIRST]

    @property
    def replica(self) -> Replica:
        return self.manager.replicas[FIRST]

    # Executors

    def attach(self, name: str = FIRST, capacity: Capacity | None = None) -> None:
        capacity = capacity or self.capacity
        self.take(self.manager.attach_executor(name, capacity, self.now, self.speeds))
        self.oracles[name] = Oracle(
            capacity.num_blocks,
            capacity.block_size,
            self.rng,
            capacity.num_host_blocks,
            own_names=self._identify is not block_identity,
        )

    def attach_again(self, name: str = FIRST, capacity: Capacity | None = None) -> None:
        """The connection is new, the executor is not: its blocks hold what they held."""
        stored = self.oracles[name].describe_blocks()
        self.take(self.manager.attach_executor(name, capacity or self.capacity, self.now, self.speeds, stored))
        self.manager.check_integrity()
        self.oracles[name].record.check_complete(self.manager.replicas[name].memory)

    def detach(self, name: str = FIRST) -> None:
        self.take(self.manager.detach_executor(name, self.now))
        del self.oracles[name]

    def lose_and_return(self, name: str = FIRST) -> None:
        """The executor crashes, and a new process takes its place."""
        self.detach(name)
        self.attach(name)

    def drain(self, name: str = FIRST) -> None:
        self.take(self.manager.drain_executor(name, self.now))

    # The KV manager itself

    def lose_manager(self, warm: bool = True) -> None:
        """The KV manager crashes. A new one takes the executors over, and gateways send what they have.

        Args:
            warm: the executors have what their blocks hold; otherwise they are new ones, too.
        """
        self.manager = self._new_manager()
        for name in list(self.oracles):
            if warm:
                self.attach_again(name)
            else:
                self.attach(name)
        for handle in self.specs:
            if handle not in self.usage and handle not in self.errors:
                self.resubmit(handle)

    def resubmit(self, handle: Hashable) -> None:
        """A request goes on with the tokens that its gateway has received."""
        self.take(self.manager.submit(self.resumption(handle), self.now))

    def resumption(self, handle: Hashable) -> RequestSpec:
        spec = self.specs[handle]
        keys = [(handle, index) for index in range(spec.n)]
        resumed = tuple(
            ResumedSequence(list(self.output[key]), self.reasons.get(key)) for key in keys if self.output.get(key)
        )
        return replace(spec, resubmitted=True, resumed=resumed)

    # Requests

    def prompt(self, length: int) -> list[int]:
        return [self.rng.randrange(VOCAB_SIZE) for _ in range(length)]

    def submit(self, handle: Hashable, prompt: list[int], max_tokens: int = 8, **options: object) -> None:
        """Submits a request; its handle is its seed, unless there is one in the options."""
        if "salt" in options:
            options["spans"] = ((len(prompt), Scope(options.pop("salt"))),)  # type: ignore[arg-type]
        if "scope" in options:
            options["spans"] = ((len(prompt), options.pop("scope")),)
        options["sampling"] = options.pop("seed", handle)
        spec = RequestSpec(handle, prompt, max_tokens=max_tokens, **options)  # type: ignore[arg-type]
        self.take(self.manager.submit(spec, self.now))
        self.specs[handle] = spec

    def pin(self, pin_id: str, prompt: list[int], ttl: float = 60.0, **options: object) -> None:
        self.submit(("pin", pin_id), prompt, max_tokens=1, pin=PinOrder(pin_id, ttl), **options)

    def abort(self, handle: Hashable, sample_index: int | None = None) -> None:
        self.take(self.manager.abort(handle, self.now, sample_index))

    def expire(self, now: float) -> None:
        self.now = now
        self.take(self.manager.expire(now))

    def request(self, handle: Hashable) -> Request:
        return self.manager._requests[handle]

    # Steps

    def schedule(self, name: str = FIRST) -> StepBatch | None:
        batch = self.manager.schedule(name, self.now)
        if batch is not None:
            self.oracles[name].send(batch)
        return batch

    def result(self, name: str = FIRST) -> None:
        result = self.oracles[name].run()
        if result is not None:
            self.take(self.manager.apply(name, result, self.now))
            if not self.oracles[name].pending:
                self.oracles[name].record.check_complete(self.manager.replicas[name].memory)
        self.manager.check_integrity()

    def step(self) -> None:
        """As a pipelined service does: two steps under way, then one result, on each executor."""
        for name, oracle in list(self.oracles.items()):
            self.schedule(name)
            self.schedule(name)
            self.manager.check_integrity()
            if oracle.pending:
                self.result(name)

    def run(self, max_steps: int = 10_000) -> None:
        """Until nothing is left to do."""
        for _ in range(max_steps):
            self.step()
            if self.manager.idle and all(self.schedule(name) is None for name in self.oracles):
                return
            for name, oracle in self.oracles.items():
                while oracle.pending and self.manager.idle:
                    self.result(name)
        raise AssertionError("requests that never end")

    def finish_steps(self) -> None:
        """Until no step is under way; builds no new one."""
        for name, oracle in self.oracles.items():
            while oracle.pending:
                self.result(name)

    def run_and_check(self) -> None:
        """To the end: every request is answered, every answer is right, and nobody holds a block."""
        self.run()
        assert not self.errors
        self.check_answers()
        for handle, spec in self.specs.items():
            assert handle in self.usage, f"{handle} was not answered"
            assert spec.pin is not None or self.usage[handle].completion_tokens >= spec.n
        self.check_nothing_is_left()

    def check_nothing_is_left(self) -> None:
        """No block is held but those of pins, and no executor knows a sequence."""
        for name, oracle in self.oracles.items():
            while self.schedule(name) is not None:
                self.result(name)
            assert not oracle.sequences
            memory = self.manager.replicas[name].memory
            pinned = {block for pin in self.manager.pins for block in pin.blocks or [] if pin.replica.name == name}
            assert memory.pool.num_referenced == len(pinned)
            memory.copies.start_step(memory.fence.last_finished_step + 1)  # nothing is read any more
            assert memory.host.pool.num_referenced == 0

    # What gateways hear

    def take(self, outputs: Outputs) -> None:
        self.progress += outputs.progress
        for sequence in outputs.tokens:
            self._extend(sequence.handle, sequence.sample_index, sequence.num_output - 1, [sequence.token_ids[-1]])
        for update in outputs.updates:
            self._extend(update.handle, update.sample_index, update.position, update.token_ids)
            if update.finish_reason is not None:
                self.reasons[update.handle, update.sample_index] = update.finish_reason
            if update.score is not None:
                self.scores[update.handle, update.sample_index] = update.score
        for end in outputs.ends:
            assert end.times is not None
            self.times[end.handle] = end.times
            if end.usage is not None:
                self.usage[end.handle] = end.usage
            else:
                self.errors[end.handle] = end.error or AssertionError("an end without a reason")

    def _extend(self, handle: Hashable, index: int, position: int, token_ids: list[int]) -> None:
        assert (handle, index) not in self.reasons, "tokens after the last one"
        tokens = self.output.setdefault((handle, index), [])
        assert position == len(tokens), "a gap or a repeat"
        tokens.extend(token_ids)

    def expected(self, handle: Hashable, sample_index: int = 0) -> list[int]:
        spec = self.specs[handle]
        if spec.beam is not None:
            return self.expected_beams(handle)[sample_index].token_ids
        if spec.best_of > spec.n:
            return self.expected_best_of(handle)[sample_index].token_ids
        return expected_output(
            spec.prompt_token_ids, spec.sampling, sample_index, spec.max_tokens, spec.stop_token_ids, spec.min_tokens
        )

    def expected_best_of(self, handle: Hashable) -> list[RankedOutput]:
        spec = self.specs[handle]
        prompt, stop = spec.prompt_token_ids, spec.stop_token_ids
        return expected_best_of(prompt, spec.sampling, spec.n, spec.best_of, spec.max_tokens, stop, spec.min_tokens)

    def expected_beams(self, handle: Hashable) -> list[Hypothesis]:
        spec = self.specs[handle]
        assert spec.beam is not None
        prompt, stop = spec.prompt_token_ids, spec.stop_token_ids
        return expected_beams(prompt, spec.sampling, spec.beam, spec.max_tokens, stop, spec.n)

    def check_answers(self) -> None:
        """Every request that ended well has exactly the expected tokens."""
        for handle in self.usage:
            spec = self.specs[handle]
            if spec.pin is None:
                for index in range(spec.n):
                    assert self.output[handle, index] == self.expected(handle, index)

    # Looking in

    @property
    def referenced_blocks(self) -> int:
        return sum(replica.memory.pool.num_referenced for replica in self.manager.replicas.values())

    @property
    def counters(self) -> Counters:
        return self.manager.counters

    def handles(self, kind: EventKind) -> list[Hashable]:
        """Whom that happened to, in order."""
        return [event.handle for event in self.events if event.kind is kind]

    def details(self, kind: EventKind, handle: Hashable) -> list[str]:
        """How or why that happened to a request, in order."""
        return [event.detail for event in self.events if event.kind is kind and event.handle == handle]

    def table(self, handle: Hashable, index: int = 0) -> list[int]:
        """The block table of one of a request's sequences."""
        return [block.block_id for block in self.request(handle).sequences[index].table]

    def under_way(self, handle: Hashable, name: str = FIRST) -> bool:
        """Whether each of a request's sequences has a row in a step that the executor has not carried out."""
        return all(each.last_step > self.oracles[name].last_step for each in self.request(handle).unfinished())

    def prefilled_tokens(self, handle: Hashable) -> int:
        """Tokens of a request that were computed in prompt chunks."""
        return sum(e.value for e in self.events if e.kind is EventKind.PREFILL and e.handle == handle)

    def charged(self, owner: str, name: str = FIRST) -> int:
        return self.manager.replicas[name].memory.pool.accounts[owner].num_charged
