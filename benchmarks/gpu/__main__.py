"""Compiles, checks and times what runs on a GPU.

    python -m benchmarks.gpu --compile-only
    python -m benchmarks.gpu --check --time

`--compile-only` needs no GPU: every listed form of every kernel, and with these every choice of tiles that a model can
get, is compiled for sm_80, sm_90 and sm_100; what must not be launched (spilled registers, too much shared memory) ends
it with status 1.

`--check` compares every kernel with its formula in float64 on fresh random numbers, and greedy answers of a model with
those of the same model on the CPU; what does not hold ends it with status 1. `--time` measures attention against the
memory's speed and against torch's over contiguous memory, a whole decode step against its floor, and swapping against
recomputing. Both together take less than five minutes. With `--device cpu` and TRITON_INTERPRET=1 the same code runs in
Triton's interpreter on the smallest of sizes; what it times then says nothing.

Prints JSON lines: what the figures must be read with, then a line for each form, check or case; the last one is the
summary. On standard error, what is under way.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.check import check
from benchmarks.gpu.compile_all import compile_all
from benchmarks.gpu.compile_pool import all_tasks
from benchmarks.gpu.lines import emit
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.parts import Parts
from benchmarks.gpu.times import run_times
from executor.attention.triton.availability import triton_obstacle
from executor.torch_decoder.torch_formats import capability_of


def main() -> int:
    parser = _parser()
    options = parser.parse_args()
    if options.compile_only:
        summary = compile_all(all_tasks(), options.processes)
        emit({"summary": summary})
        return 1 if summary["faults"] else 0
    if not options.check and not options.time:
        parser.error("choose --compile-only, --check or --time")
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("there is no usable GPU: --compile-only needs none", file=sys.stderr)
        return 2
    if obstacle := triton_obstacle(device, capability_of(device)):
        print(obstacle, file=sys.stderr)
        return 2
    return _run(Machine.of(device), options)


def _run(machine: Machine, options: argparse.Namespace) -> int:
    seed = random.randrange(1 << 30) if options.seed is None else options.seed
    emit({"machine": machine.facts(), "seed": seed})
    parts = Parts(options.seconds)
    summary: dict[str, Any] = {"machine": machine.facts()}
    with torch.inference_mode():
        if options.check:
            summary["check"] = check(machine, parts, options.model or _demo_model(machine), seed)
        if options.time:
            run_times(machine, parts)
    summary |= {name: result for name, result in parts.summary.items() if result is not None}
    failed = parts.failed + summary.get("check", {}).get("failed", [])
    emit({"summary": {**summary, "failed": failed}})
    return 1 if failed else 0


def _demo_model(machine: Machine) -> Path | None:
    """None where it is not in the cache, or too large to be interpreted."""
    try:
        from services.model_store import SMOLLM2
    except ImportError:  # there is no more of the project's environment than a GPU's executor needs
        return None
    return SMOLLM2.path if SMOLLM2.path.is_file() and not machine.tiny else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    chosen = parser.add_argument_group("what to do; --check and --time go together").add_argument
    chosen("--compile-only", action="store_true", help="compile ahead of time; no GPU is needed")
    chosen("--check", action="store_true", help="compare results with what they should be")
    chosen("--time", action="store_true", help="measure how long they take")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: in Triton's interpreter")
    parser.add_argument("--model", type=Path, help="whose answers are checked; the demo model, if it is in the cache")
    parser.add_argument("--seed", type=int, help="of all that is random; a fresh one where not given")
    parser.add_argument("--seconds", type=float, default=270.0, help="after which no further part of it begins")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="that compile at once")
    return parser


if __name__ == "__main__":
    sys.exit(main())
