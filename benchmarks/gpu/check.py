"""All checks, each with its time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.check_attention import check_attention
from benchmarks.gpu.check_decode_plan import check_decode_plan
from benchmarks.gpu.check_memory import check_memory
from benchmarks.gpu.check_model import check_model, model_to_check
from benchmarks.gpu.check_moves import check_moves
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.parts import Parts
from benchmarks.gpu.results import Checks
from benchmarks.gpu.shapes import SMOLLM2, TINY
from executor.attention import BACKENDS

_ATTENTION_SECONDS = 45.0
_BLOCK_SIZE = 16


def check(machine: Machine, parts: Parts, model: Path | None, seed: int) -> dict[str, Any]:
    """Prints a line for each check.

    Args:
        model: whose answers are checked; one with random weights where None.

    Returns:
        How many there were, and which failed.
    """
    checks = Checks()
    backend = BACKENDS["triton"]

    def moves() -> None:
        shape = TINY if machine.tiny else SMOLLM2
        for dtype in (torch.float32,) if machine.tiny else (torch.bfloat16, torch.float32):
            layout = backend().block_layout(shape.description(), _BLOCK_SIZE, dtype)
            check_moves(machine, layout, _BLOCK_SIZE, checks, seed)

    def answers() -> None:
        with model_to_check(model, seed) as (path, prompts):
            check_model(machine, path, prompts, checks)

    parts.run("check attention", lambda: check_attention(machine, backend, checks, _ATTENTION_SECONDS, seed))
    parts.run("check decode plan", lambda: check_decode_plan(machine, backend, checks, seed))
    parts.run("check moves", moves)
    parts.run("check answers", answers)
    parts.run("check memory", lambda: check_memory(machine, checks, seed))
    return checks.summary()
