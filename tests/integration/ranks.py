"""A model on several ranks, each a process with its part of every layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from executor.executor import Executor
from kvmanager.cost_model import Preemption
from services.config import ExecutorConfig
from services.executor.loading import check, load
from services.executor.ranks import RankDeath, RankProcesses
from tests.integration import cases
from tests.integration.models import Model
from tests.integration.stack import Stack

BLOCK_SIZE = 4


@dataclass
class Parallel:
    """A model, and the same one on several ranks.

    Attributes:
        executor: the first rank's.
        on_ranks: the model whose only executor that is.
    """

    model: Model
    executor: Executor
    on_ranks: Model


def ranks_config(model: Model, size: int, block_size: int = BLOCK_SIZE) -> ExecutorConfig:
    return ExecutorConfig(
        model=str(model.path),
        device="cpu",
        dtype="float32",
        block_size=block_size,
        kv_memory=model.memory,
        host_memory=model.memory,
        threads=size,
        tensor_parallel_size=size,
    )


@contextmanager
def on_ranks(model: Model, size: int, block_size: int = BLOCK_SIZE) -> Iterator[Parallel]:
    """The model's ranks, for the time of a block."""
    config = ranks_config(model, size, block_size)
    threads = torch.get_num_threads()
    deaths: list[RankDeath] = []
    processes = RankProcesses(config, deaths.append)
    try:
        executor = load(config, processes.join(check(config, rank=0)))
        executors = {(block_size, 0): executor}
        yield Parallel(
            model, executor, Model(model.path, model.transformers, model.prompts, model.memory, _executors=executors)
        )
    finally:
        processes.stop()
        torch.set_num_threads(threads)
    assert not deaths


def run_every_method(parallel: Parallel, preemption: Preemption) -> None:
    """Prompts in chunks, forks, beams, copies on write; blocks leave and come back."""
    stack = Stack(
        parallel.on_ranks,
        BLOCK_SIZE,
        num_blocks=72,
        num_host_blocks=256,
        preemption=preemption,
        max_batched_tokens=32,
        max_sequences=32,
    )
    cases.run(stack, cases.every_method(parallel.model))
    counters = stack.manager.counters
    assert counters.preemptions > 0
    assert counters.copied_blocks > 0
    assert (counters.preemptions_by_swap > 0) == (preemption is Preemption.SWAP)
