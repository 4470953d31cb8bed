"""Attention of prompts and of their chunks against torch's over keys and values that lie in one piece."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.contiguous import prefill_calls
from benchmarks.gpu.lines import emit
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.results import within
from benchmarks.gpu.shapes import LLAMA_8B, SMOLLM2, TINY, Shape
from benchmarks.gpu.stopwatch import milliseconds, ratio
from executor.attention import AnyBackend, AttentionParams, StepLayout
from executor.memory.arena import BlockArena

_BLOCK_SIZE = 16
_ROUNDS = 9


@dataclass(frozen=True, slots=True)
class _Case:
    """Rows of `count` new tokens each, at the end of contexts of `context` tokens."""

    rows: int
    count: int
    context: int

    def flops(self, shape: Shape) -> int:
        """Two products, without what is masked."""
        seen = sum(range(self.context - self.count + 1, self.context + 1))
        return 4 * shape.heads * shape.head_dim * self.rows * seen


_CASES = (_Case(1, 8192, 8192), _Case(8, 1024, 1024), _Case(1, 2048, 2048), _Case(4, 512, 8192), _Case(64, 128, 128))
_TINY_CASES = (_Case(2, 9, 20),)


def time_prefill(machine: Machine, make_backend: Callable[[], AnyBackend], seconds: float) -> dict[str, Any]:
    """Prints a line for each shape and case; returns the median speed and ratio of each shape."""
    shapes = [TINY] if machine.tiny else [LLAMA_8B, SMOLLM2]
    summary = {}
    for shape in shapes:
        cases = _TINY_CASES if machine.tiny else _CASES
        lines = []
        for case in within(seconds / len(shapes), f"prefill {shape.name}", cases):
            lines.append(_time(machine, make_backend(), shape, case))
            emit(lines[-1])
        summary[shape.name] = {
            "tflops": statistics.median(line["tflops"] for line in lines),
            "over_contiguous": round(statistics.median(line["over_contiguous"] for line in lines), 3),
        }
    return summary


def _time(machine: Machine, backend: AnyBackend, shape: Shape, case: _Case) -> dict[str, Any]:
    dtype = torch.float32 if machine.tiny else torch.bfloat16
    device, watch = machine.device, machine.stopwatch
    blocks_per_row = -(-case.context // _BLOCK_SIZE)
    num_blocks = case.rows * blocks_per_row
    layout = backend.block_layout(shape.with_layers(1).description(), _BLOCK_SIZE, dtype)
    arena = BlockArena(layout, num_blocks=num_blocks, block_size=_BLOCK_SIZE, device=device)
    arena.data.normal_()
    cache = backend.layer_caches(arena)[0]
    tables = np.split(np.random.default_rng().permutation(num_blocks), case.rows)
    plan = backend.plan(StepLayout([case.count] * case.rows, [case.context] * case.rows, tables, _BLOCK_SIZE), device)
    queries = torch.randn(case.rows * case.count, shape.heads, shape.head_dim, dtype=dtype, device=device)
    params = AttentionParams(shape.head_dim**-0.5)

    size = (case.rows, shape.kv_heads, case.context, shape.head_dim)
    keys, values = (torch.randn(size, dtype=dtype, device=device) for _ in range(2))
    asked = queries.view(case.rows, case.count, shape.heads, shape.head_dim).transpose(1, 2).contiguous()
    calls: dict[str, Callable[[], object]] = {"paged": lambda: plan.attend(cache, queries, params)}
    calls |= {f"torch {name}": call for name, call in prefill_calls(asked, keys, values).items()}
    times = watch.in_turns({side: watch.repeatable(call) for side, call in calls.items()}, machine.rounds(_ROUNDS))

    theirs = min((side for side in times if side != "paged"), key=lambda side: statistics.median(times[side]))
    flops = case.flops(shape)
    return {
        "part": "prefill",
        "shape": shape.name,
        "dtype": str(dtype).removeprefix("torch."),
        "rows": case.rows,
        "new_tokens": case.count,
        "context": case.context,
        "paged_ms": milliseconds(times["paged"]),
        "contiguous_ms": milliseconds(times[theirs]),
        "contiguous": theirs,
        "tflops": round(flops / statistics.median(times["paged"]) / 1e12, 2),
        "contiguous_tflops": round(flops / statistics.median(times[theirs]) / 1e12, 2),
        "over_contiguous": ratio(times["paged"], times[theirs]),
    }
