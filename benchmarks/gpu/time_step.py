"""A whole decode step of a model against its floor: weights, keys and values read once, at the speed of a copy.

Steps that are recorded as CUDA graphs take turns with those that are not. The weights are random. What comes before and
after the model (sampling, the batch's bookkeeping) is not in it.
"""

from __future__ import annotations

import statistics
import time
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from benchmarks.gpu.lines import emit
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.random_model import load_random_model, weight_bytes
from benchmarks.gpu.results import within
from benchmarks.gpu.shapes import LLAMA_8B, SMOLLM2, TINY, Decodes, Shape
from executor.loaded_model import LoadedModel
from executor.model_runner import ModelRunner, Row
from executor.progress import tell_nobody
from executor.sequences import SequenceState
from executor.step import SamplingParams

_BLOCK_SIZE = 16
_CONTEXT = 1024
_BATCHES = (64, 1, 256, 16)
_STEPS = 20
_ROUNDS = 3
# Of what is free beside the weights.
_SHARE = 0.8


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
        return _left_out(shape)
    model = load_random_model(machine, shape, _BLOCK_SIZE, dtype)
    room = int(_SHARE * machine.free_bytes()) // model.layout.bytes_per_block
    cases = [Decodes(2, 20)] if machine.tiny else [Decodes(batch, _CONTEXT) for batch in _BATCHES]
    fitting = [case for case in cases if case.num_blocks(_BLOCK_SIZE) <= room]
    for case in (case for case in cases if case not in fitting):
        _left_out(shape, batch=case.batch, context=case.context)
    if not fitting:
        return {}
    runners = _runners(machine, model, fitting)
    shares: dict[str, float] = dict.fromkeys(runners, 0.0)
    for case in within(seconds, f"step {shape.name}", fitting):
        read = weights + case.batch * case.context * shape.num_layers * shape.kv_bytes_per_token(itemsize)
        floor = read / bandwidth
        line = {"part": "step", "shape": shape.name, "dtype": dtype, "batch": case.batch, "context": case.context}
        line |= {"floor_ms": round(1000 * floor, 4)}
        for side, took in _seconds_a_step(machine, runners, case).items():
            shares[side] = max(shares[side], floor / took)
            line[side] = {
                "step_ms": round(1000 * took, 4),
                "bandwidth_share": round(floor / took, 3),
                "tokens_per_s": round(case.batch / took),
            }
        emit(line)
    return {f"best_bandwidth_share_{side}": round(share, 3) for side, share in shares.items()}


def _runners(machine: Machine, model: LoadedModel, cases: Sequence[Decodes]) -> dict[str, ModelRunner]:
    """Over one arena that holds each case; one of them with steps that are recorded, where there is a GPU."""
    arena = model.arena(max(case.num_blocks(_BLOCK_SIZE) for case in cases))
    arena.data.zero_()
    if machine.tiny:
        return {"eager": model.runner(arena)}
    recorded = model.runner(arena)
    with torch.inference_mode():
        recorded.prepare_decodes(max(case.batch for case in cases), _CONTEXT, tell_nobody)
    return {"eager": model.runner(arena), "graphs": recorded}


def _left_out(shape: Shape, **case: int) -> dict[str, Any]:
    emit({"part": "step", "shape": shape.name, **case, "left_out": "not enough memory"})
    return {}


@torch.inference_mode()
def _seconds_a_step(machine: Machine, runners: Mapping[str, ModelRunner], case: Decodes) -> dict[str, float]:
    """The host's time for each of many steps in a row, the last one's work done; the median of some rounds."""
    rows = _rows(case)
    count, rounds = machine.rounds(_STEPS), machine.rounds(_ROUNDS)
    times: dict[str, list[float]] = {side: [] for side in runners}
    for _ in range(rounds):
        for side, runner in runners.items():
            runner.run(rows)
            _synchronize(machine)
            began = time.perf_counter()
            for _ in range(count):
                runner.run(rows)
            _synchronize(machine)
            times[side].append((time.perf_counter() - began) / count)
    return {side: statistics.median(each) for side, each in times.items()}


def _rows(case: Decodes) -> list[Row]:
    """Decodes whose contexts are taken as computed."""
    blocks = torch.randperm(case.num_blocks(_BLOCK_SIZE)).view(case.batch, -1).tolist()
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
