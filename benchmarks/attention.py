"""Attention of the native kernels beside what the machine's memory and arithmetic give, and beside plain torch.

    python -m benchmarks.attention --heads smollm2 llama-7b llama-3-8b --batch 1 8 64 --context 128 512 2048 8192

Decodes are measured as in a step: one layer after the other, block tables in random order, nothing in a cache. Beside
each case stand the machine's speeds at that moment (`read_gb_s`, `copy_gb_s` with both directions counted,
`fp32_gflops`), and torch's time for the same layer (gathering keys and values, then its scaled_dot_product_attention:
the backend `reference`), measured in turns. Each layer is a call from Python, which costs the smallest cases some ten
microseconds; the decoder pays that once for all layers.

Prints a JSON line for each case, and last the summary: over all cases, medians of the share of the memory's reading
speed that decodes at the largest batch reach, of the share of the arithmetic that prefill reaches, and of how many
times faster than torch either is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.probe import Probe
from executor.attention import AttentionParams, ReferenceAttention, StepLayout
from executor.attention.reference import SlotCache
from executor.memory.arena import BlockArena
from executor.native import Crew, load_library
from executor.native.attention import AttentionKernels, NativeBlockLayout, StepRows
from executor.native.memory import allocate, populate
from executor.native.structures import AttentionParams as NativeParams
from executor.native.structures import KvKind

BLOCK_SIZE = 16
_CPU = torch.device("cpu")
_KINDS = {"float32": KvKind.FLOAT32, "bfloat16": KvKind.BFLOAT16, "int8": KvKind.INT8}
_TORCH_LAYERS = 2


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's attention."""

    num_layers: int
    heads: int
    kv_heads: int
    head_dim: int


SHAPES = {
    "smollm2": Shape(30, 9, 3, 64),
    "llama-7b": Shape(32, 32, 32, 128),
    "llama-3-8b": Shape(32, 32, 8, 128),
}


@dataclass(frozen=True, slots=True)
class Case:
    """Rows of `count` new tokens each, with contexts of `context` tokens."""

    rows: int
    count: int
    context: int

    @property
    def num_blocks(self) -> int:
        return self.rows * -(-self.context // BLOCK_SIZE)

    def flops(self, shape: Shape) -> int:
        """Of a layer, without what is masked."""
        seen = sum(range(self.context - self.count + 1, self.context + 1))
        return 4 * shape.heads * shape.head_dim * self.rows * seen

    def tables(self, num_blocks: int, rng: np.random.Generator) -> list[npt.NDArray[np.int64]]:
        blocks = rng.permutation(num_blocks)[: self.num_blocks].astype(np.int64)
        return [np.ascontiguousarray(table) for table in np.split(blocks, self.rows)]


class Native:
    """The kernels, over an arena of as many of the model's layers as fit into the memory."""

    def __init__(self, kernels: AttentionKernels, memory: npt.NDArray[np.uint8], shape: Shape, kind: KvKind) -> None:
        self._kernels = kernels
        self._memory = memory
        self._shape = shape
        self._kind = kind

    def layer_bytes(self, case: Case) -> int:
        """Keys and values that a layer reads."""
        return case.rows * case.context * self._layout(1).bytes_per_block // BLOCK_SIZE

    def num_layers(self, case: Case) -> int:
        """0 where not even one fits."""
        fitting = self._memory.nbytes // (case.num_blocks * self._layout(1).bytes_per_block)
        return min(self._shape.num_layers, fitting)

    def prepare(self, case: Case, queries: torch.Tensor, rng: np.random.Generator) -> Callable[[], float]:
        """Measures seconds a layer."""
        layout = self._layout(self.num_layers(case))
        num_blocks = self._memory.nbytes // layout.bytes_per_block
        arena = BlockArena(
            layout,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            device=_CPU,
            memory=torch.from_numpy(self._memory),
        )
        caches = [layout.cache(arena, layer) for layer in range(self.num_layers(case))]
        rows = StepRows([case.count] * case.rows, [case.context] * case.rows, case.tables(num_blocks, rng))
        params = NativeParams(scale=self._shape.head_dim**-0.5, heads=self._shape.heads)
        asked = queries.numpy()
        out = np.empty_like(asked)

        def measure() -> float:
            start = time.perf_counter()
            for cache in caches:
                self._kernels.attend(cache, rows, params, asked, out)
            return (time.perf_counter() - start) / len(caches)

        return measure

    def _layout(self, num_layers: int) -> NativeBlockLayout:
        return self._kernels.block_layout(
            self._kind,
            num_layers=num_layers,
            block_size=BLOCK_SIZE,
            kv_heads=self._shape.kv_heads,
            head_dim=self._shape.head_dim,
        )


class Torch:
    """The reference backend, over as many layers as it takes to leave the caches."""

    def __init__(self, shape: Shape, kv_dtype: str) -> None:
        self._backend = ReferenceAttention()
        self._shape = shape
        # It has no int8.
        self._dtype = torch.float32 if kv_dtype == "float32" else torch.bfloat16

    def prepare(self, case: Case, queries: torch.Tensor, rng: np.random.Generator) -> Callable[[], float]:
        """Measures seconds a layer."""
        slots = case.num_blocks * BLOCK_SIZE
        numbers = torch.rand(_TORCH_LAYERS, 2, slots, self._shape.kv_heads, self._shape.head_dim).to(self._dtype)
        tables = case.tables(case.num_blocks, rng)
        layout = StepLayout([case.count] * case.rows, [case.context] * case.rows, tables, BLOCK_SIZE)
        plan = self._backend.plan(layout, _CPU)
        asked = queries.to(self._dtype)
        params = AttentionParams(self._shape.head_dim**-0.5)

        def measure() -> float:
            start = time.perf_counter()
            for layer in numbers:
                plan.attend(SlotCache(*layer), asked, params)
            return (time.perf_counter() - start) / _TORCH_LAYERS

        return measure


def new_memory(nbytes: int) -> npt.NDArray[np.uint8]:
    """Bytes that are numbers of moderate size, whether read as float32, bfloat16 or int8."""
    memory = allocate(nbytes)
    populate([memory])
    rng = np.random.default_rng(0)
    pattern = 0x3E00 + rng.integers(0, 0x180, 1 << 20) + 0x8000 * rng.integers(0, 2, 1 << 20)
    halves = memory.view(np.uint16)
    for start in range(0, len(halves), len(pattern)):
        part = halves[start : start + len(pattern)]
        part[:] = pattern[: len(part)]
    return memory


def copy_gb_s(memory: npt.NDArray[np.uint8]) -> float:
    """Of one half of the memory to the other, reading and writing counted."""
    halves = torch.from_numpy(memory).view(2, -1)
    start = time.perf_counter()
    halves[1].copy_(halves[0])
    return memory.nbytes / (time.perf_counter() - start) / 1e9


def measure(
    native: Native, peer: Torch, case: Case, shape: Shape, memory: npt.NDArray[np.uint8], args: argparse.Namespace
) -> dict[str, float]:
    """One case: medians of the rounds. Between them, a large copy leaves nothing in the caches."""
    rng = np.random.default_rng(args.seed)
    queries = torch.randn(case.rows * case.count, shape.heads, shape.head_dim)
    attend, attend_in_torch = native.prepare(case, queries, rng), peer.prepare(case, queries, rng)
    copies, ours, torchs = [], [], []
    for _ in range(args.rounds):
        copies.append(copy_gb_s(memory))
        ours.append(attend())
        torchs.append(attend_in_torch())
    seconds = statistics.median(ours)
    return {
        "batch": case.rows,
        "new_tokens": case.count,
        "context": case.context,
        "layer_us": 1e6 * seconds,
        "gb_s": native.layer_bytes(case) / seconds / 1e9,
        "gflops": case.flops(shape) / seconds / 1e9,
        "torch_layer_us": 1e6 * statistics.median(torchs),
        "times_torch": statistics.median(theirs / mine for theirs, mine in zip(torchs, ours, strict=True)),
        "copy_gb_s": statistics.median(copies),
    }


def summary(lines: list[dict[str, float | str]], largest_batch: int) -> dict[str, float | None]:
    """Medians over the cases; None where there is no such case."""

    def median(values: list[float]) -> float | None:
        return statistics.median(values) if values else None

    decodes = [line for line in lines if line["new_tokens"] == 1]
    prefills = [line for line in lines if line["new_tokens"] != 1]
    largest = [float(line["gb_s"]) / float(line["read_gb_s"]) for line in decodes if line["batch"] == largest_batch]
    return {
        "decode_share_of_read": median(largest),
        "decode_times_torch": median([float(line["times_torch"]) for line in decodes]),
        "prefill_share_of_fp32": median([float(line["gflops"]) / float(line["fp32_gflops"]) for line in prefills]),
        "prefill_times_torch": median([float(line["times_torch"]) for line in prefills]),
    }


def _rounded(line: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in line.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", nargs="+", choices=sorted(SHAPES), default=list(SHAPES))
    parser.add_argument("--kv-dtype", choices=sorted(_KINDS), default="bfloat16")
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--context", nargs="+", type=int, default=[128, 512, 2048, 8192])
    parser.add_argument("--prefill", nargs="+", type=int, default=[512], help="lengths of prompts")
    parser.add_argument("--memory-mib", type=int, default=1024, help="of keys and values; what needs more is left out")
    parser.add_argument("--threads", type=int, default=min(2, torch.get_num_threads()))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    library = load_library()
    kernels = AttentionKernels(library, Crew(library, args.threads))
    memory = new_memory(args.memory_mib << 20)
    cases = [Case(batch, 1, context) for batch in args.batch for context in args.context]
    cases += [Case(1, length, length) for length in args.prefill]
    lines: list[dict[str, float | str]] = []
    with Probe() as probe, torch.inference_mode():
        for name in args.heads:
            native = Native(kernels, memory, SHAPES[name], _KINDS[args.kv_dtype])
            for case in cases:
                if not native.num_layers(case):
                    continue
                speeds = probe.measure()
                line = measure(native, Torch(SHAPES[name], args.kv_dtype), case, SHAPES[name], memory, args)
                suffix = "1" if args.threads == 1 else "2"
                around = {key: speeds[f"{key}_{suffix}"] for key in ("read_gb_s", "fp32_gflops")}
                lines.append({"heads": name, "kv_dtype": args.kv_dtype, "level": library.level, **line, **around})
                print(json.dumps(_rounded(lines[-1])), flush=True)
    print(json.dumps(_rounded({"threads": args.threads, **summary(lines, max(args.batch))})))


if __name__ == "__main__":
    main()
