"""Kernels to compile ahead of time, as the executor's modules list theirs."""

import triton
import triton.language as tl

from executor.attention.triton.kernel_spec import KernelSpec


@triton.jit
def _scale(x, factor, size, tile: tl.constexpr):
    at = tl.program_id(0) * tile + tl.arange(0, tile)
    tl.store(x + at, tl.load(x + at, mask=at < size) * factor, mask=at < size)


@triton.jit
def _product(a, b, out, inner, rows: tl.constexpr, columns: tl.constexpr, step: tl.constexpr):
    """Of a [rows, inner] and b [inner, columns]."""
    row, column, part = tl.arange(0, rows), tl.arange(0, columns), tl.arange(0, step)
    total = tl.zeros((rows, columns), tl.float32)
    for start in range(0, inner, step):
        left = tl.load(a + row[:, None] * inner + start + part[None, :])
        right = tl.load(b + (start + part[:, None]) * columns + column[None, :])
        total = tl.dot(left, right, total)
    tl.store(out + row[:, None] * columns + column[None, :], total)


def product_spec(name: str, tile: tuple[int, int, int], num_warps: int, num_stages: int) -> KernelSpec:
    signature = {"a": "*fp16", "b": "*fp16", "out": "*fp32", "inner": "i32"}
    constants = dict(zip(("rows", "columns", "step"), tile, strict=True))
    aligned = frozenset({"a", "b", "out", "inner"})
    return KernelSpec(name, _product, signature, constants, aligned, num_warps, num_stages)


def specs() -> list[KernelSpec]:
    scale = {"x": "*bf16", "factor": "fp32", "size": "i32"}
    fp8 = {"x": "*fp8e4nv", "factor": "fp32", "size": "i32"}
    return [
        KernelSpec("scale bf16", _scale, scale, {"tile": 256}, frozenset({"x"}), 4, 1),
        KernelSpec("scale fp8", _scale, fp8, {"tile": 256}, frozenset({"x"}), 4, 1),
        product_spec("product", (64, 64, 32), 4, 3),
    ]
