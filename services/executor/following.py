"""What a rank that is not the first does: what the first one does, step for step."""

from __future__ import annotations

import gc
import pickle
from queue import SimpleQueue
from typing import NoReturn

from executor.tensor_parallel.group import join, read_step
from services.executor.loading import check, load
from services.executor.ranks import RankTask
from services.process import configure_logging


def follow(messages: SimpleQueue[bytes]) -> NoReturn:
    """Loads this rank's part of the model, and runs steps.

    Args:
        messages: first the rank's task, then steps, from the first rank.

    Raises:
        ConfigError: the model can't be loaded so.
        Exception: whatever has happened in a step.
    """
    task: RankTask = pickle.loads(messages.get())
    configure_logging(f"executor, rank {task.rank}", task.config.log_level)
    device = check(task.config, task.rank)
    executor = load(task.config, join(task.port, task.rank, task.config.tensor_parallel_size, device))
    gc.freeze()
    while True:
        executor.launch(read_step(messages.get()))
