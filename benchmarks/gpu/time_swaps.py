"""Swapping a sequence out and in again against computing it anew, by block size (section 7.3 of arXiv 2309.06180).

Beside them, copying its blocks on the device, both directions counted, and computing while it is swapped out, which
should take no longer than computing alone.
"""

from __future__ import annotations

import statistics
import time
from array import array
from typing import Any

import torch

from benchmarks.gpu.lines import emit
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.random_model import load_random_model
from benchmarks.gpu.results import within
from benchmarks.gpu.shapes import LLAMA_8B, TINY
from executor.memory.block_mover import make_mover
from executor.memory.host_arena import HostArena
from executor.model_runner import Row
from executor.sequences import SequenceState
from executor.step import SamplingParams
from executor.timer import Span, Timer

_BLOCK_SIZES = (8, 16, 32, 64, 128)
_TOKENS = 2048
# Layers of the model that is measured; all of them take as much longer as there are more.
_LAYERS = 8
_ROUNDS = 5


def time_swaps(machine: Machine, seconds: float) -> dict[str, Any]:
    """Prints a line for each block size; returns the ratio of recomputing to swapping for each."""
    block_sizes = (8,) if machine.tiny else _BLOCK_SIZES
    lines = [_time(machine, block_size) for block_size in within(seconds, "swaps", block_sizes)]
    return {f"recompute_over_swap_b{line['block_size']}": line["recompute_over_swap"] for line in lines}


@torch.inference_mode()
def _time(machine: Machine, block_size: int) -> dict[str, Any]:
    shape = TINY if machine.tiny else LLAMA_8B.with_layers(_LAYERS)
    tokens = 32 if machine.tiny else _TOKENS
    count = tokens // block_size
    model = load_random_model(machine, shape, block_size, "float32" if machine.tiny else "bfloat16")
    arena = model.arena(2 * count)
    arena.data.zero_()
    runner = model.runner(arena)
    timer = Timer(machine.device, time.perf_counter)
    host = HostArena(arena, count)
    host.data.zero_()
    mover = make_mover(arena, host, timer)
    blocks = torch.randperm(2 * count)[:count].tolist()
    row = Row(
        SequenceState(
            sequence_id=0,
            token_ids=array("q", [1 + token % 100 for token in range(tokens)]),
            prompt_length=tokens,
            num_computed=0,
            block_table=array("q", blocks),
            sample_index=0,
            sampling=SamplingParams(),
        ),
        tokens,
    )
    others = [block for block in range(2 * count) if block not in set(blocks)]
    out, back, computed, copied, together = [], [], [], [], []
    for round_number in range(1 + machine.rounds(_ROUNDS)):
        start = timer.mark()
        runner.run([row])
        recompute = timer.seconds(Span(start, timer.mark()))
        swapped_out = timer.seconds(mover.swap_out([(block, place) for place, block in enumerate(blocks)]))
        swapped_in = timer.seconds(mover.swap_in([(place, block) for place, block in enumerate(blocks)]))
        copy = timer.seconds(mover.copy(list(zip(blocks, others, strict=True))))
        start = timer.mark()
        mover.swap_out([(block, place) for place, block in enumerate(others)])
        runner.run([row])
        both = timer.seconds(Span(start, timer.mark()))
        if round_number:  # the first compiles
            copied.append(copy)
            together.append(both)
            out.append(swapped_out)
            back.append(swapped_in)
            computed.append(recompute)
    size = count * arena.bytes_per_block
    swapped = [one + other for one, other in zip(out, back, strict=True)]
    line = {
        "part": "swaps",
        "shape": shape.name,
        "layers": shape.num_layers,
        "tokens": tokens,
        "block_size": block_size,
        "swap_out_ms": round(1000 * statistics.median(out), 4),
        "swap_in_ms": round(1000 * statistics.median(back), 4),
        "swap_out_gb_s": round(size / statistics.median(out) / 1e9, 2),
        "swap_in_gb_s": round(size / statistics.median(back) / 1e9, 2),
        "recompute_ms": round(1000 * statistics.median(computed), 4),
        "recompute_while_swapping_out_ms": round(1000 * statistics.median(together), 4),
        "copy_gb_s": round(2 * size / statistics.median(copied) / 1e9, 2),
        "recompute_over_swap": round(statistics.median(computed) / statistics.median(swapped), 3),
    }
    emit(line)
    return line
