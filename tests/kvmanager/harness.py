"""Drives a KV manager with an oracle executor, step by step."""

from __future__ import annotations

import random
from collections.abc import Hashable

from kvmanager.capacity import Capacity
from kvmanager.events import Event
from kvmanager.manager import KVManager
from kvmanager.request import FinishReason, RequestSpec
from kvmanager.scheduler import Limits
from kvmanager.step import Outputs, StepBatch, Usage
from tests.oracle import VOCAB_SIZE, Oracle, expected_output


class Harness:
    """A KV manager and its executor. Everything that gateways would hear is collected and checked for gaps."""

    def __init__(
        self,
        num_blocks: int = 64,
        block_size: int = 4,
        max_model_len: int = 200,
        max_batched_tokens: int = 64,
        max_sequences: int = 16,
        max_waiting_requests: int = 100,
        prefix_caching: bool = True,
        seed: int = 0,
    ) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.capacity = Capacity(num_blocks, block_size, max_model_len)
        self.events: list[Event] = []
        self.manager = KVManager(
            Limits(max_batched_tokens, max_sequences, max_waiting_requests),
            prefix_caching=prefix_caching,
            on_event=self.events.append,
        )
        self.manager.attach_executor(self.capacity, self.now)
        self.oracle = Oracle(num_blocks, block_size, self.rng)
        self.specs: dict[Hashable, RequestSpec] = {}
        self.output: dict[tuple[Hashable, int], list[int]] = {}
        self.reasons: dict[tuple[Hashable, int], FinishReason] = {}
        self.usage: dict[Hashable, Usage] = {}
        self.errors: dict[Hashable, Exception] = {}

    def prompt(self, length: int) -> list[int]:
        return [self.rng.randrange(VOCAB_SIZE) for _ in range(length)]

    def submit(self, handle: Hashable, prompt: list[int], max_tokens: int = 8, **options: object) -> None:
        spec = RequestSpec(handle, prompt, max_tokens=max_tokens, sampling=handle, **options)  # type: ignore[arg-type]
        self.manager.submit(spec, self.now)
        self.specs[handle] = spec

    def schedule(self) -> StepBatch | None:
        batch = self.manager.schedule(self.now)
        if batch is not None:
            self.oracle.send(batch)
        return batch

    def result(self) -> None:
        self.take(self.manager.apply(self.oracle.run(), self.now))
        self.manager.check_integrity()

    def step(self) -> None:
        """As a pipelined service does: two steps under way, then one result."""
        self.schedule()
        self.schedule()
        self.manager.check_integrity()
        if self.oracle.pending:
            self.result()

    def run(self, max_steps: int = 10_000) -> None:
        """Until nothing is left to do."""
        for _ in range(max_steps):
            self.step()
            if self.manager.idle and self.schedule() is None:
                return
            while self.oracle.pending and self.manager.idle:
                self.result()
        raise AssertionError("requests that never end")

    def take(self, outputs: Outputs) -> None:
        for update in outputs.updates:
            tokens = self.output.setdefault((update.handle, update.sample_index), [])
            assert update.position == len(tokens), "a gap or a repeat"
            tokens.extend(update.token_ids)
            if update.finish_reason is not None:
                self.reasons[update.handle, update.sample_index] = update.finish_reason
        for end in outputs.ends:
            if end.usage is not None:
                self.usage[end.handle] = end.usage
            else:
                self.errors[end.handle] = end.error or AssertionError("an end without a reason")

    def expected(self, handle: Hashable, sample_index: int = 0) -> list[int]:
        spec = self.specs[handle]
        return expected_output(
            spec.prompt_token_ids, handle, sample_index, spec.max_tokens, spec.stop_token_ids, spec.min_tokens
        )

    def check_answers(self) -> None:
        """Every request that ended well has exactly the expected tokens."""
        for handle in self.usage:
            for index in range(self.specs[handle].n):
                assert self.output[handle, index] == self.expected(handle, index)

    @property
    def referenced_blocks(self) -> int:
        state = self.manager.memory_state()
        assert state is not None
        return state.referenced_blocks
