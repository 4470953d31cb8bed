"""A whole decode step of a model against its floor: weights, keys and values read once, at the speed of a copy.

The weights are random. What comes before and after the model (sampling, the batch's bookkeeping) is not in it.
"""

from __future__ import annotations

import statistics
import time
from array import array
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu.lines import emit
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.random_model import load_random_model, weight_bytes
from benchmarks.gpu.results import within
from benchmarks.gpu.shapes import LLAMA_8B, SMOLLM2, TINY, Shape
from executor.model_runner import ModelRunner, Row
from executor.sequences import SequenceState
from executor.step import SamplingParams

_BLOCK_SIZE = 16
_CONTEXT = 1024
_BATCHES = (64, 1, 256, 16)
_STEPS = 20
# Of what is free beside the weights.
_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class _Case:
    batch: int
    context: int

    def num_blocks(self) -> int:
        return self.batch * -(-self.context // _BLOCK_SIZE)


def time_step(machine: Machine, bandwidth: float, seconds: float) -> dict[str, Any]:
    """Prints a line for each shape and batch; returns each shape's best share of the bandwidth.

    Args:
        bandwidth: bytes a second of a copy.
    """
    shapes = [TINY] if machine.tiny else [SMOLLM2, LLAMA_8B]
    return {shape.name: _time_shape(machine, shape, bandwidth, seconds / len(shapes)) for shape in shapes}


def _time_shape(machine: Machine, shape: Shape, bandwidth: float, seconds: float) -> dict[str, Any]:
    dtype = "float32" if machine.tiny else "bfloat16"
    itemsize = getattr(torch, dtype).itemsize
    weights = weight_bytes(shape, itemsize)
    if weights > _SHARE * machine.free_bytes():
        emit({"part": "step", "shape": shape.name, "left_out": "not enough memory"})
        return {}
    model = load_random_model(machine, shape, _BLOCK_SIZE, dtype)
    room = int(_SHARE * machine.free_bytes()) // model.layout.bytes_per_block
    cases = [_Case(2, 20)] if machine.tiny else [_Case(batch, _CONTEXT) for batch in _BATCHES]
    fitting = [case for case in cases if case.num_blocks() <= room]
    runner = model.runner(model.arena(max(case.num_blocks() for case in fitting)))
    runner.arena.data.zero_()
    shares = []
    for case in within(seconds, f"step {shape.name}", fitting):
        took = _seconds_a_step(machine, runner, case)
        read = weights + case.batch * case.context * shape.num_layers * shape.kv_bytes_per_token(itemsize)
        shares.append(read / bandwidth / took)
        line = {"part": "step", "shape": shape.name, "dtype": dtype, "batch": case.batch, "context": case.context}
        floor = {"floor_ms": round(1000 * read / bandwidth, 4), "bandwidth_share": round(shares[-1], 3)}
        emit({**line, "step_ms": round(1000 * took, 4), **floor, "tokens_per_s": round(case.batch / took)})
    return {"best_bandwidth_share": round(max(shares), 3)}


@torch.inference_mode()
def _seconds_a_step(machine: Machine, runner: ModelRunner, case: _Case) -> float:
    """The host's time for each of many steps in a row, the last one's work done."""
    rows = _rows(case)
    count = 1 if machine.tiny else _STEPS
    times = []
    for _ in range(1 if machine.tiny else 4):
        _synchronize(machine)
        began = time.perf_counter()
        for _ in range(count):
            runner.run(rows)
        _synchronize(machine)
        times.append((time.perf_counter() - began) / count)
    return statistics.median(times)


def _rows(case: _Case) -> list[Row]:
    """Decodes whose contexts are taken as computed."""
    blocks = torch.randperm(case.num_blocks()).view(case.batch, -1).tolist()
    return [
        Row(
            SequenceState(
                sequence_id=number,
                token_ids=array("q", [1 + number % 100] * case.context),
                prompt_length=case.context - 1,
                num_computed=case.context - 1,
                block_table=array("q", table),
                sample_index=0,
                sampling=SamplingParams(),
            ),
            1,
        )
        for number, table in enumerate(blocks)
    ]


def _synchronize(machine: Machine) -> None:
    if machine.device.type == "cuda":
        torch.cuda.synchronize(machine.device)
