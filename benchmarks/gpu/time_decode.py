"""Attention of decodes against the memory's speed, and against attention over keys and values that lie in one piece.

A decode reads its sequence's keys and values once; that many bytes at the speed of a copy are its floor. Block tables
are in random order. Beside them stand the same kernel over blocks in their order, which tells what disorder costs, and
the fastest of torch's kernels over contiguous memory, which tells what paging costs (the paper's kernel took 20 to 26 %
more than FasterTransformer's; section 7.1 of arXiv 2309.06180).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.contiguous import decode_calls
from benchmarks.gpu.lines import emit
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.results import within
from benchmarks.gpu.shapes import LLAMA_8B, SMOLLM2, TINY, Decodes, Shape
from benchmarks.gpu.stopwatch import Call, milliseconds, ratio
from executor.attention import AnyBackend, AttentionParams, StepLayout
from executor.memory.arena import BlockArena

_BATCHES = (256, 64, 16, 4, 1)
_CONTEXTS = (2048, 8192, 32_768, 512, 128)
_BLOCK_SIZE = 16
_ROUNDS = 15
# Of what is free; the arena and the contiguous copies take as much each.
_SHARE = 0.4
# From here on a batch is large, and its context long enough for the memory to be what counts.
_LARGE_BATCH = 64
_LONG_CONTEXT = 2048


def time_decode(
    machine: Machine, make_backend: Callable[[], AnyBackend], bandwidth: float, seconds: float
) -> dict[str, Any]:
    """Prints a line for each shape, batch and context; returns what they come to.

    Args:
        bandwidth: bytes a second of a copy.
    """
    shapes = [TINY] if machine.tiny else [LLAMA_8B, SMOLLM2]
    summary = {}
    for shape in shapes:
        lines = _time_shape(machine, make_backend(), shape, bandwidth, seconds / len(shapes))
        large = [line for line in lines if line["batch"] >= _LARGE_BATCH and line["context"] >= _LONG_CONTEXT]
        summary[shape.name] = _come_to(large or lines)
    return summary


def _time_shape(
    machine: Machine, backend: AnyBackend, shape: Shape, bandwidth: float, seconds: float
) -> list[dict[str, Any]]:
    dtype = torch.float32 if machine.tiny else torch.bfloat16
    token_bytes = shape.kv_bytes_per_token(dtype.itemsize)
    room = int(_SHARE * machine.free_bytes()) // (_BLOCK_SIZE * token_bytes)
    cases = (
        [Decodes(2, 40)] if machine.tiny else [Decodes(batch, context) for context in _CONTEXTS for batch in _BATCHES]
    )
    for case in cases:
        if case.num_blocks(_BLOCK_SIZE) > room:
            emit({"part": "decode", "shape": shape.name, **_named(case), "left_out": "not enough memory"})
    cases = [case for case in cases if case.num_blocks(_BLOCK_SIZE) <= room]
    sides = _Sides(machine, backend, shape, dtype, max(case.num_blocks(_BLOCK_SIZE) for case in cases))
    lines = []
    for case in within(seconds, f"decode {shape.name}", cases):
        floor = case.batch * case.context * token_bytes / bandwidth
        line = {"part": "decode", "shape": shape.name, "dtype": str(dtype).removeprefix("torch."), **_named(case)}
        line |= _figures(sides.measure(case), floor)
        emit(line)
        lines.append(line)
    return lines


class _Sides:
    """One layer's memory for paged and contiguous attention, of which each case uses a part."""

    def __init__(
        self, machine: Machine, backend: AnyBackend, shape: Shape, dtype: torch.dtype, num_blocks: int
    ) -> None:
        self._machine, self._backend, self._shape, self._dtype = machine, backend, shape, dtype
        layout = backend.block_layout(shape.with_layers(1).description(), _BLOCK_SIZE, dtype)
        self._arena = BlockArena(layout, num_blocks=num_blocks, block_size=_BLOCK_SIZE, device=machine.device)
        self._arena.data.normal_()
        self._cache = backend.layer_caches(self._arena)[0]
        self._contiguous = torch.empty_like(self._arena.data).view(2, -1).normal_()

    def measure(self, case: Decodes) -> dict[str, list[float]]:
        """Seconds of each round, by side; of torch's kernels, the fastest one's."""
        shape, watch = self._shape, self._machine.stopwatch
        queries = torch.randn(case.batch, shape.heads, shape.head_dim, dtype=self._dtype, device=self._machine.device)
        blocks = np.arange(case.num_blocks(_BLOCK_SIZE), dtype=np.int64)
        calls = {
            "paged": self._paged(case, queries, np.random.default_rng().permutation(self._arena.num_blocks)[blocks]),
            "in_order": self._paged(case, queries, blocks),
        }
        calls |= {f"torch {name}": call for name, call in self._torch(case, queries).items()}
        seconds = watch.in_turns(
            {side: watch.repeatable(call) for side, call in calls.items()}, self._machine.rounds(_ROUNDS)
        )
        torch_sides = [side for side in seconds if side.startswith("torch")]
        fastest = min(torch_sides, key=lambda side: statistics.median(seconds[side]))
        return {side: times for side, times in seconds.items() if side not in torch_sides or side == fastest}

    def _paged(self, case: Decodes, queries: torch.Tensor, blocks: np.ndarray[Any, np.dtype[np.int64]]) -> Call:
        tables = np.split(blocks, case.batch)
        layout = StepLayout([1] * case.batch, [case.context] * case.batch, tables, _BLOCK_SIZE)
        plan = self._backend.plan(layout, self._machine.device)
        params = AttentionParams(self._shape.head_dim**-0.5)
        return lambda: plan.attend(self._cache, queries, params)

    def _torch(self, case: Decodes, queries: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
        size = (case.batch, self._shape.kv_heads, case.context, self._shape.head_dim)
        keys, values = (part[: math.prod(size)].view(size) for part in self._contiguous)
        return decode_calls(queries[:, :, None], keys, values)


def _figures(seconds: dict[str, list[float]], floor: float) -> dict[str, Any]:
    paged = seconds["paged"]
    theirs = next(side for side in seconds if side.startswith("torch"))
    return {
        "paged_ms": milliseconds(paged),
        "in_order_ms": milliseconds(seconds["in_order"]),
        "contiguous_ms": milliseconds(seconds[theirs]),
        "contiguous": theirs,
        "floor_ms": round(1000 * floor, 4),
        "bandwidth_share": round(floor / statistics.median(paged), 3),
        "over_in_order": ratio(paged, seconds["in_order"]),
        "over_contiguous": ratio(paged, seconds[theirs]),
    }


def _come_to(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of large batches of long contexts: the least share of the bandwidth, and the paging's cost in the median and at
    worst."""
    costs = [line["over_contiguous"] for line in lines]
    return {
        "cases": len(lines),
        "least_bandwidth_share": min(line["bandwidth_share"] for line in lines),
        "over_contiguous": round(statistics.median(costs), 3),
        "worst_over_contiguous": max(costs),
    }


def _named(case: Decodes) -> dict[str, int]:
    return {"batch": case.batch, "context": case.context}
