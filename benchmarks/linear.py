"""Products with weight matrices of SmolLM2-135M's shapes: ours beside torch's, in turns, and the machine's floor.

    python -m benchmarks.linear --rows 1 8 64 --threads 2

Each measurement multiplies with so many copies of a matrix, one after the other, that the weights come from memory as
they do in a model's step. Torch's side is `F.linear` in bfloat16, and where torch has it the product that oneDNN packs
for; both without the conversions from and to float32 that ours has. Prints a JSON line for each shape and number of
rows: the median of the rounds in milliseconds for one matrix, 10**9 operations a second (`gflops`) and bytes of weights
read a second (`gb_s`) of each side; the ratios of torch's times to ours, medians of the rounds' ratios; and what the
machine's memory and arithmetic gave just before (see `benchmarks.probe`). The last line is the summary.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

# Before torch is imported: on a busy machine, threads that spin take the processor from those that work. Its memory in
# huge pages, as ours is.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import numpy as np
import torch

from benchmarks.probe import Probe
from executor.native import Crew, Library, load_library
from executor.native.linear import Epilogue, PackedLinear, WeightKind, multiply, pack, workspace_bytes
from executor.native.memory import allocate

Call = Callable[[], object]


@dataclass(frozen=True)
class Shape:
    """A product of a model's step."""

    outputs: int
    inputs: int
    epilogue: Epilogue


SHAPES = {
    "qkv": Shape(960, 576, Epilogue.STORE),
    "attention out": Shape(576, 576, Epilogue.ADD),
    "gate and up": Shape(3072, 576, Epilogue.GATE_SILU),
    "down": Shape(576, 1536, Epilogue.ADD),
    "head": Shape(49_152, 576, Epilogue.STORE),
}


class Sides:
    """One shape's product on every side, each a call that multiplies with all copies."""

    def __init__(self, library: Library, crew: Crew, shape: Shape, kind: WeightKind, copies: int) -> None:
        self._library, self._crew, self._shape = library, crew, shape
        weights = np.random.default_rng(0).standard_normal((shape.outputs, shape.inputs), np.float32)
        self._ours = _copies(pack(library, kind, weights), copies)
        self.weight_bytes = self._ours[0].packed.nbytes
        # All are written, so that no two lie in one page of zeros.
        self._plain = [torch.from_numpy(weights).bfloat16() for _ in range(copies)]
        self._prepacked = _prepacked(self._plain)

    def calls(self, rows: int) -> dict[str, Call]:
        """By side, for so many rows of x."""
        shape, is_gate = self._shape, self._shape.epilogue.is_gate
        x = allocate(4 * rows * shape.inputs).view(np.float32).reshape(rows, -1)
        y = allocate(4 * rows * shape.outputs).view(np.float32).reshape(rows, -1)
        x[:] = np.random.default_rng(1).standard_normal(x.shape, np.float32)
        half = torch.from_numpy(x).bfloat16()
        workspace = allocate(max(workspace_bytes(self._library, self._ours[0].kind, rows, shape.inputs), 1))
        y = y[:, : shape.outputs // 2] if is_gate else y
        calls: dict[str, Call] = {
            "octavo": lambda: multiply(self._library, self._crew, self._ours, x, y, shape.epilogue, workspace),
            "torch": lambda: [torch.nn.functional.linear(half, weights) for weights in self._plain],
        }
        if self._prepacked:
            calls["onednn"] = lambda: [_onednn(half, weights) for weights in self._prepacked]
        return calls


def _copies(matrix: PackedLinear, count: int) -> list[PackedLinear]:
    memory = allocate(count * matrix.packed.nbytes).reshape(count, -1)
    memory[:] = matrix.packed
    return [replace(matrix, packed=packed) for packed in memory]


def _prepacked(matrices: list[torch.Tensor]) -> list[torch.Tensor]:
    """As oneDNN wants them; none where this torch has no such product."""
    try:
        packed = [torch.ops.mkldnn._reorder_linear_weight(matrix) for matrix in matrices]
        _onednn(torch.zeros(1, matrices[0].shape[1], dtype=torch.bfloat16), packed[0])
    except (AttributeError, RuntimeError):
        return []
    return packed


def _onednn(x: torch.Tensor, weights: torch.Tensor) -> object:
    return torch.ops.mkldnn._linear_pointwise(x, weights, None, "none", [], "")


def measure(calls: dict[str, Call], rounds: int) -> dict[str, list[float]]:
    """Seconds of each round, by side; the sides take turns in an order that turns too."""
    seconds: dict[str, list[float]] = {side: [] for side in calls}
    for call in calls.values():
        call()
    sides = list(calls)
    for number in range(rounds):
        for side in sides[number % len(sides) :] + sides[: number % len(sides)]:
            began = time.perf_counter()
            calls[side]()
            seconds[side].append(time.perf_counter() - began)
    return seconds


def figures(shape: Shape, rows: int, copies: int, weight_bytes: int, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """What a line says of the sides."""
    line: dict[str, Any] = {}
    for side, times in seconds.items():
        median = statistics.median(times) / copies
        read = weight_bytes if side == "octavo" else 2 * shape.outputs * shape.inputs
        line[side] = {
            "ms": round(1000 * median, 4),
            "gflops": round(2 * rows * shape.outputs * shape.inputs / median / 1e9, 1),
            "gb_s": round(read / median / 1e9, 1),
        }
        if side != "octavo":
            ratios = [theirs / ours for ours, theirs in zip(seconds["octavo"], times, strict=True)]
            line[f"{side}_over_octavo"] = round(statistics.median(ratios), 2)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 64, 256])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--kind", choices=[kind.name.lower() for kind in WeightKind], default="bfloat16")
    parser.add_argument("--level", help="of CPU features; the best that runs here by default")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=256, help="of weights that are read in a round, at least")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    library = load_library(options.level)
    crew = Crew(library, options.threads)
    kind = WeightKind[options.kind.upper()]
    summary: dict[str, Any] = {"level": library.level, "kind": options.kind, "threads": options.threads}
    with Probe(options.megabytes << 20) as probe, torch.inference_mode():
        for name in options.shapes:
            shape = SHAPES[name]
            copies = -(-(options.megabytes << 20) // (2 * shape.outputs * shape.inputs))
            sides = Sides(library, crew, shape, kind, copies)
            for rows in options.rows:
                machine = probe.measure()
                seconds = measure(sides.calls(rows), options.rounds)
                line = figures(shape, rows, copies, sides.weight_bytes, seconds)
                print(json.dumps({"shape": name, "rows": rows, **line, "machine": machine}), flush=True)
                summary[f"{name}, {rows} rows"] = line
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
