"""Merges the results of attention over parts of the keys."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch
import triton

from executor.attention.triton.dtypes import TRITON_NAMES
from executor.attention.triton.kernel_spec import KernelSpec
from executor.attention.triton.kernels.merge import merge_parts

_CHUNK_ENTRIES = 2048


def merge(parts: torch.Tensor, log_sums: torch.Tensor, tokens: torch.Tensor, output: torch.Tensor) -> None:
    """Adds up the parts, each weighted by its share of the sum of exponentials.

    Args:
        parts: [parts, results, heads, head_dim], float32. Where a part is empty it may hold anything.
        log_sums: [parts, results, heads], float32: log2 of the sum of exp2(score / ln 2); -inf where a part is empty.
        tokens: [results], int32: which token of the output each result is.
        output: [tokens, heads, head_dim], contiguous; becomes 0 where all parts are empty.
    """
    num_parts, num_results, heads, head_dim = parts.shape
    spec = _merge_spec(output.dtype, heads, head_dim)
    spec.launch((num_results * heads,), parts, log_sums, tokens, output, num_parts, num_results)


def specs(
    dtypes: Iterable[torch.dtype] = (torch.float16, torch.bfloat16, torch.float32),
    heads_and_dims: Iterable[tuple[int, int]] = ((9, 64), (32, 128), (12, 80), (8, 256)),
) -> list[KernelSpec]:
    """The forms for these types of results, and numbers and sizes of heads."""
    return [_merge_spec(dtype, *sizes) for dtype in dtypes for sizes in heads_and_dims]


@functools.cache
def _merge_spec(dtype: torch.dtype, heads: int, head_dim: int) -> KernelSpec:
    padded_dim = int(triton.next_power_of_2(head_dim))
    name = TRITON_NAMES[dtype]
    return KernelSpec(
        name=f"merge {name} h{heads} d{head_dim}",
        kernel=merge_parts,
        signature={
            "parts": "*fp32",
            "log_sums": "*fp32",
            "tokens": "*i32",
            "output": f"*{name}",
            "num_parts": "i32",
            "num_results": "i32",
        },
        constants={
            "HEADS": heads,
            "HEAD_DIM": head_dim,
            "PADDED_DIM": padded_dim,
            "CHUNK": max(4, _CHUNK_ENTRIES // padded_dim),
        },
        aligned=frozenset(("parts", "log_sums", "tokens", "output")),
        num_warps=4,
        num_stages=1,
    )
