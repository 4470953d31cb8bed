"""Executors that run out of memory, as on a GPU that others use too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from executor.executor import Executor
from executor.memory.out_of_memory import MemoryWarnings
from executor.memory.split_runner import SplitRunner
from executor.model_runner import ModelRunner, Row
from executor.sampling.split_sampler import SplitSampler


def out_of_memory() -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


class ScarceRunner(ModelRunner):
    """Has memory for so many tokens. It has written keys and values by the time it finds out.

    Attributes:
        sizes: tokens of each step that it has computed.
    """

    def __init__(self, runner: ModelRunner, max_tokens: int) -> None:
        self._runner = runner
        self.max_tokens = max_tokens
        self.sizes: list[int] = []
        self.arena, self.device, self.kernels = runner.arena, runner.device, runner.kernels

    def run(self, rows: Sequence[Row], *, every_token: bool = False) -> torch.Tensor:
        logits = self._runner.run(rows, every_token=every_token)
        num_tokens = sum(row.num_tokens for row in rows)
        if num_tokens > self.max_tokens:
            raise out_of_memory()
        self.sizes.append(num_tokens)
        return logits


class ScarceSampler:
    """Has memory for so many sequences."""

    def __init__(self, sampler: Any, max_sequences: int) -> None:
        self._sampler = sampler
        self._max_sequences = max_sequences

    def sample(self, logits: torch.Tensor, rows: Sequence[int], sequences: Any) -> Any:
        self._check(logits, sequences)
        return self._sampler.sample(logits, rows, sequences)

    def candidates(self, logits: torch.Tensor, rows: Sequence[int], sequences: Any) -> Any:
        self._check(logits, sequences)
        return self._sampler.candidates(logits, rows, sequences)

    def _check(self, logits: torch.Tensor, sequences: Any) -> None:
        if len(sequences) > self._max_sequences:
            raise out_of_memory()
        assert len(logits) <= 8 * self._max_sequences, "logits of others are there, too"


@contextmanager
def scarce(executor: Executor, max_tokens: int, max_sequences: int, clock: Any = lambda: 0.0) -> Iterator[ScarceRunner]:
    """An executor that has memory for no more than that at once."""
    runner, sampler = executor._runner, executor._sampler
    assert isinstance(runner, SplitRunner)
    assert isinstance(sampler, SplitSampler)
    warnings = MemoryWarnings(clock)
    little = ScarceRunner(runner._runner, max_tokens)
    executor._runner = SplitRunner(little, warnings)
    executor._sampler = SplitSampler(ScarceSampler(sampler._sampler, max_sequences), warnings)
    try:
        yield little
    finally:
        executor._runner, executor._sampler = runner, sampler
