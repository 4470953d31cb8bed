"""Plans for decodes whose tensors stay where they are, filled with one step after another; on a GPU in a CUDA graph."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from benchmarks.gpu.check_attention import LIMITS
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.paged_rows import PagedRows
from benchmarks.gpu.reference import attention, relative_error
from benchmarks.gpu.results import Checks
from benchmarks.gpu.shapes import LLAMA_8B, SMOLLM2, TINY, Shape
from executor.attention import AnyBackend, AttentionParams, DecodePlan, StepLayout

_BLOCK_SIZE = 16
_MAX_ROWS = 8


@dataclass(frozen=True, slots=True)
class _Case:
    """Steps of one plan.

    Attributes:
        plan: which of the backend's plans.
        shared: tokens with which all sequences begin, in the same blocks.
        steps: context lengths of each step's rows.
    """

    plan: Literal["decode_plan", "shared_prefix_plan"]
    shared: int
    steps: tuple[tuple[int, ...], ...]


_CASES = (
    _Case("decode_plan", 0, ((1, 100, 3000, 17, 16), (5,), (900, 31, 32, 33, 8000, 1, 2, 3))),
    # Worth being read together by five and by eight rows, not by two.
    _Case("shared_prefix_plan", 2048, ((2049, 2064, 3000, 2100, 2777), (2054, 2055), tuple(range(2056, 2064)))),
)
_TINY_CASES = (
    _Case("decode_plan", 0, ((1, 20, 16), (33,))),
    _Case("shared_prefix_plan", 32, ((33, 40, 37), (35, 34))),
)


def check_decode_plan(machine: Machine, make_backend: Callable[[], AnyBackend], checks: Checks, seed: int) -> None:
    """Checks that one plan computes steps of ever other rows."""
    dtypes = (torch.float16,) if machine.tiny else (torch.float16, torch.bfloat16)
    shapes = (TINY,) if machine.tiny else (LLAMA_8B, SMOLLM2)
    for dtype, shape, case in itertools.product(dtypes, shapes, _TINY_CASES if machine.tiny else _CASES):
        checks.measure(
            "decode plan",
            LIMITS[dtype],
            partial(_error, machine, make_backend, shape, dtype, case, seed),
            plan=case.plan,
            shape=shape.name,
            dtype=str(dtype).removeprefix("torch."),
            graph=not machine.tiny,
            seed=seed,
        )


def _error(
    machine: Machine, make_backend: Callable[[], AnyBackend], shape: Shape, dtype: torch.dtype, case: _Case, seed: int
) -> float:
    lengths = [length for step in case.steps for length in step]
    every = [(1, length) for length in lengths]
    generator = machine.generator(seed)
    rows = PagedRows(make_backend, shape, _BLOCK_SIZE, every, dtype, dtype, generator, case.shared)
    rows.write_past(rows.keys, rows.values)
    make_plan = getattr(rows.backend, case.plan)
    step = _Step(machine, rows, make_plan(_MAX_ROWS, max(lengths), _BLOCK_SIZE, machine.device))
    first, worst = 0, 0.0
    for step_lengths in case.steps:
        chosen = range(first, first + len(step_lengths))
        worst = max(worst, step.error(chosen))
        first += len(step_lengths)
    return worst


class _Step:
    """Keys and values written and attended to, in tensors that stay where they are."""

    def __init__(self, machine: Machine, rows: PagedRows, plan: DecodePlan[object] | None) -> None:
        self._rows = rows
        self._params = AttentionParams(rows.shape.head_dim**-0.5)
        if plan is None:
            raise ValueError(f"{rows.backend.name} has no such plan")
        self._plan = plan
        self._queries, self._keys, self._values = (
            torch.zeros((_MAX_ROWS, *part.shape[1:]), dtype=part.dtype, device=machine.device)
            for part in (rows.queries, rows.keys[0], rows.values[0])
        )
        # Turned by nothing, so that the kernel which turns them is the one that runs.
        self._angles = tuple(
            torch.full((_MAX_ROWS, 1, rows.shape.head_dim // 2), entry, device=machine.device) for entry in (1.0, 0.0)
        )
        self._compute = machine.stopwatch.repeatable(self._call)

    def error(self, chosen: range) -> float:
        """Of a step of these rows.

        Raises:
            ValueError: more than the rows' own slots was written, or what empty rows attend to is not finite.
        """
        rows = self._rows
        self._plan.fill(
            StepLayout(
                [1] * len(chosen),
                [rows.layout.context_lengths[row] for row in chosen],
                [rows.layout.block_tables[row] for row in chosen],
                _BLOCK_SIZE,
            )
        )
        count = len(chosen)
        self._queries[:count] = rows.queries[chosen.start : chosen.stop]
        for place, row in enumerate(chosen):
            self._keys[place], self._values[place] = rows.keys[row][-1], rows.values[row][-1]
        before = rows.bits().clone()
        self._compute()
        written = int((rows.bits() != before).sum())
        if written > count * 2 * rows.shape.kv_heads * rows.shape.head_dim:
            raise ValueError(f"{written} numbers were written for {count} rows")
        if not bool(torch.isfinite(self._result).all()):
            raise ValueError("a row that is empty attends to what is not finite")
        return max(
            relative_error(
                self._result[place : place + 1],
                attention(self._queries[place : place + 1], rows.keys[row], rows.values[row], self._params),
            )
            for place, row in enumerate(chosen)
        )

    def _call(self) -> None:
        cosines, sines = self._angles
        queries = self._plan.rotate_and_write(
            self._rows.cache, self._queries, self._keys, self._values, (cosines, sines)
        )
        self._result = self._plan.attend(self._rows.cache, queries, self._params)
