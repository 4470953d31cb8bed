"""A GPU's memory: blocks get what was promised and no more, and where it runs out a step gives the same tokens."""

from __future__ import annotations

import gc
import logging
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.gpu.generate import greedy
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.random_model import write_random_model
from benchmarks.gpu.results import Checks
from benchmarks.gpu.shapes import Shape
from executor.loader import load_executor
from executor.settings import ExecutorSettings

# Its steps take much memory beside that of its weights.
_WIDE = Shape("wide", 8, 2, 64, 2, 512, 16_384, 1024)
# What the executor may have beyond what is in use, as a share of all memory.
_MORE = 0.25
# How far from what was asked for the use may be: the driver's part, and what the allocator rounds up.
_TOLERANCE = 0.02
_LEFT_BYTES = 160 << 20
_PROMPTS, _PROMPT_LENGTH, _OUTPUT = 8, 900, 4


def check_memory(machine: Machine, checks: Checks, seed: int) -> None:
    """Checks the budget, and steps for which there is no memory."""
    if machine.tiny:
        checks.skip("memory", "there is no GPU")
        return
    rng = random.Random(seed)
    prompts = [rng.choices(range(3, _WIDE.vocab_size), k=_PROMPT_LENGTH) for _ in range(_PROMPTS)]
    with tempfile.TemporaryDirectory() as folder:
        write_random_model(_WIDE, Path(folder), seed)
        settings = ExecutorSettings(
            Path(folder), device="cuda", dtype="float32", decoder="torch", max_model_len=2048, max_batched_tokens=8192
        )
        checks.measure("memory budget", _TOLERANCE, lambda: _distance(settings, prompts))
        checks.holds("out of memory", lambda: _same_without_memory(replace(settings, kv_memory="512MiB"), prompts))


def _distance(settings: ExecutorSettings, prompts: list[list[int]]) -> float:
    """By how much the use, in a step too, differs from what was asked for, as a share of all memory."""
    _release()
    wanted = min(0.95, _used() + _MORE)
    executor = load_executor(replace(settings, gpu_memory_utilization=wanted))
    greedy(executor, prompts, _OUTPUT)
    return abs(_used() - wanted)


def _same_without_memory(settings: ExecutorSettings, prompts: list[list[int]]) -> bool:
    """Whether answers are the same where steps have to be computed in parts.

    Raises:
        ValueError: memory did not run out.
    """
    executor = load_executor(settings)
    expected = greedy(executor, prompts, _OUTPUT)
    with _full_memory(), _warnings() as heard:
        answers = greedy(executor, prompts, _OUTPUT)
    if not heard:
        raise ValueError("memory was to run out, and did not")
    return answers == expected


@contextmanager
def _full_memory() -> Iterator[None]:
    """All but a little is taken."""
    _release()
    free, _ = torch.cuda.mem_get_info()
    taken = torch.empty(max(0, free - _LEFT_BYTES), dtype=torch.uint8, device="cuda")
    try:
        yield
    finally:
        del taken
        torch.cuda.empty_cache()


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """What the executor warns of meanwhile."""
    heard: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    listener, logger = Listener(logging.WARNING), logging.getLogger("executor.memory.out_of_memory")
    logger.addHandler(listener)
    try:
        yield heard
    finally:
        logger.removeHandler(listener)


def _release() -> None:
    """Gives back what nobody uses."""
    gc.collect()
    torch.cuda.empty_cache()


def _used() -> float:
    """Share of the GPU's memory that is taken."""
    free, total = torch.cuda.mem_get_info()
    return 1 - free / total
