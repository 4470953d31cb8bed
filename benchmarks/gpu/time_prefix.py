"""Attention of decodes whose sequences begin with the same blocks: read once for all of them, or once for each.

Three sides take turns: rows that share a prefix, which the backend sees; rows that share all of it but their first
block, so that it sees nothing and only the caches help; and rows that share nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.lines import emit
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.results import within
from benchmarks.gpu.shapes import LLAMA_8B, TINY
from benchmarks.gpu.stopwatch import milliseconds, ratio
from executor.attention import AnyBackend, AttentionParams, StepLayout
from executor.memory.arena import BlockArena

_BLOCK_SIZE = 16
_ROUNDS = 15


@dataclass(frozen=True, slots=True)
class _Case:
    """Tokens that all of a batch have in common, and that each has of its own."""

    batch: int
    shared: int
    own: int

    def tables(self, shared_from: int, rng: np.random.Generator) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
        """Block tables in random order; from that block of the prefix on they have it in common."""
        prefix = self.shared // _BLOCK_SIZE
        count = prefix + -(-self.own // _BLOCK_SIZE)
        tables = rng.permutation(self.batch * count).reshape(self.batch, count)
        tables[:, shared_from:prefix] = tables[0, shared_from:prefix]
        return list(tables)


_CASES = (_Case(64, 2048, 256), _Case(64, 8192, 256), _Case(16, 2048, 256), _Case(256, 1024, 128))


def time_prefix(machine: Machine, make_backend: Callable[[], AnyBackend], seconds: float) -> dict[str, Any]:
    """Prints a line for each case; returns how many times faster a prefix that is seen is, for each."""
    summary = {}
    for case in within(seconds, "prefix", (_Case(3, 32, 8),) if machine.tiny else _CASES):
        line = _time(machine, make_backend(), case)
        emit(line)
        summary[f"{case.batch} x {case.shared}"] = line["unseen_over_shared"]
    return summary


def _time(machine: Machine, backend: AnyBackend, case: _Case) -> dict[str, Any]:
    shape = TINY if machine.tiny else LLAMA_8B
    dtype = torch.float32 if machine.tiny else torch.bfloat16
    watch, rng = machine.stopwatch, np.random.default_rng()
    sides = {"shared": 0, "unseen": 1, "apart": case.shared // _BLOCK_SIZE}
    tables = {side: case.tables(shared_from, rng) for side, shared_from in sides.items()}
    layout = backend.block_layout(shape.with_layers(1).description(), _BLOCK_SIZE, dtype)
    num_blocks = tables["apart"][0].size * case.batch
    arena = BlockArena(layout, num_blocks=num_blocks, block_size=_BLOCK_SIZE, device=machine.device)
    arena.data.normal_()
    cache = backend.layer_caches(arena)[0]
    queries = torch.randn(case.batch, shape.heads, shape.head_dim, dtype=dtype, device=machine.device)
    params, context = AttentionParams(shape.head_dim**-0.5), case.shared + case.own

    def attend(table: list[np.ndarray[Any, np.dtype[np.int64]]]) -> Callable[[], object]:
        layout = StepLayout([1] * case.batch, [context] * case.batch, table, _BLOCK_SIZE)
        plan = backend.plan(layout, machine.device)
        return watch.repeatable(lambda: plan.attend(cache, queries, params))

    times = watch.in_turns({side: attend(table) for side, table in tables.items()}, machine.rounds(_ROUNDS))
    return {
        "part": "prefix",
        "shape": shape.name,
        "dtype": str(dtype).removeprefix("torch."),
        "batch": case.batch,
        "shared": case.shared,
        "own": case.own,
        **{f"{side}_ms": milliseconds(seconds) for side, seconds in times.items()},
        "unseen_over_shared": ratio(times["unseen"], times["shared"]),
        "apart_over_shared": ratio(times["apart"], times["shared"]),
    }
