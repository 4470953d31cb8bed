"""Attention over block tables: which form of the kernel is launched, and with what."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton

from executor.attention.interface import AttentionParams
from executor.attention.triton.block_cache import BlockCache
from executor.attention.triton.dtypes import TRITON_NAMES
from executor.attention.triton.kernel_spec import KernelSpec
from executor.attention.triton.kernels.attention import paged_attention
from executor.attention.triton.tile_sizes import MOST_REGISTERS, TileSizes, dot_precision, padded
from executor.attention.triton.tiles import TILE_FIELDS


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What of a model the kernel is compiled for.

    Attributes:
        dtype: of queries and results.
        kv_dtype: of the cache.
        group: query heads that share a key/value head.
    """

    dtype: torch.dtype
    kv_dtype: torch.dtype
    kv_heads: int
    group: int
    head_dim: int
    block_size: int

    @classmethod
    def of(cls, cache: BlockCache, queries: torch.Tensor) -> AttentionShape:
        _, kv_heads, block_size, head_dim = cache.keys.shape
        group = queries.shape[1] // kv_heads
        return cls(queries.dtype, cache.keys.dtype, kv_heads, group, head_dim, block_size)


@dataclass(frozen=True, slots=True)
class ScoreForm:
    """Which of `AttentionParams` there are."""

    windowed: bool = False
    capped: bool = False
    biased: bool = False

    @classmethod
    def of(cls, params: AttentionParams) -> ScoreForm:
        return cls(params.window > 0, params.soft_cap > 0, bool(params.alibi_slopes))


@dataclass(frozen=True, slots=True)
class Work:
    """Tiles of queries, on the device.

    Attributes:
        sizes: what the tiles were made for.
        tiles: as of `executor.attention.triton.tiles`.
        block_ids: the rows' block tables, int32.
    """

    sizes: TileSizes
    tiles: torch.Tensor
    block_ids: torch.Tensor


def attend(
    work: Work,
    cache: BlockCache,
    queries: torch.Tensor,
    params: AttentionParams,
    slopes: torch.Tensor,
    output: torch.Tensor,
    log_sums: torch.Tensor | None = None,
) -> None:
    """Computes the tiles.

    Args:
        queries: [tokens, heads, head_dim]; a token's heads lie one after the other.
        slopes: [heads], float32; of any length where there are none.
        output: [results, heads, head_dim]; with `log_sums`, the splits' [splits, results, heads, head_dim] in float32.
        log_sums: [splits, results, heads], float32: log2 of the sum of exp2(score / ln 2) over a split's keys; where a
            split has none, -inf, and its result is not written.
    """
    shape = AttentionShape.of(cache, queries)
    spec = attention_spec(shape, work.sizes, ScoreForm.of(params), log_sums is not None)
    head_tiles = -(-shape.group // work.sizes.heads)
    num_splits, num_results = (1, len(output)) if log_sums is None else output.shape[:2]
    spec.launch(
        (len(work.tiles) * shape.kv_heads * head_tiles, num_splits),
        queries,
        cache.keys,
        cache.values,
        work.block_ids,
        work.tiles,
        slopes,
        output,
        slopes if log_sums is None else log_sums,
        cache.keys.stride(0),
        queries.stride(0),
        num_results,
        params.scale,
        params.soft_cap,
        params.window,
    )


def is_interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on a CPU."""
    return not isinstance(paged_attention, triton.JITFunction)


@functools.cache
def attention_spec(shape: AttentionShape, sizes: TileSizes, scores: ScoreForm, partial: bool) -> KernelSpec:
    """The kernel's form; a partial one writes the results of splits."""
    flags = (("peeled", sizes.peels), ("large", sizes.is_large), ("partial", partial))
    return attending_spec(
        " ".join(("attention", *(name for name, is_set in flags if is_set))),
        paged_attention,
        shape,
        sizes,
        scores,
        tables={"block_ids": "*i32", "tiles": "*i32"},
        results={"output": "*fp32" if partial else f"*{TRITON_NAMES[shape.dtype]}", "log_sums": "*fp32"},
        constants={
            "TILE_FIELDS": TILE_FIELDS,
            "PEELED": sizes.peels and not scores.windowed,
            "PARTIAL": partial,
        },
        made_for=90 if sizes.is_large else 80,
    )


def attending_spec(
    title: str,
    kernel: Any,
    shape: AttentionShape,
    sizes: TileSizes,
    scores: ScoreForm,
    *,
    tables: Mapping[str, str],
    results: Mapping[str, str],
    constants: Mapping[str, Any],
    made_for: int = 80,
) -> KernelSpec:
    """A form of a kernel that takes queries, a layer's keys and values, tables, ALiBi's slopes, and places for results.

    Args:
        tables, results: the kernel's own arguments, as of `KernelSpec.signature`.
        constants: beside those that all such kernels have.
    """
    dtype, kv_dtype = TRITON_NAMES[shape.dtype], TRITON_NAMES[shape.kv_dtype]
    pointers = {
        "queries": f"*{dtype}",
        "keys": f"*{kv_dtype}",
        "values": f"*{kv_dtype}",
        **tables,
        "slopes": "*fp32",
        **results,
    }
    numbers = {
        "block_stride": "i64",
        "query_stride": "i64",
        "num_results": "i32",
        "scale": "fp32",
        "soft_cap": "fp32",
        "window": "i32",
    }
    return KernelSpec(
        name=f"{title} {_name(shape, sizes, scores)}",
        kernel=kernel,
        signature=pointers | numbers,
        constants={
            **constants,
            "KV_HEADS": shape.kv_heads,
            "GROUP": shape.group,
            "HEADS": sizes.heads,
            "HEAD_DIM": shape.head_dim,
            "PADDED_DIM": padded(shape.head_dim),
            "BLOCK_SIZE": shape.block_size,
            "BLOCK_M": sizes.rows,
            "BLOCK_N": sizes.keys,
            "WINDOWED": scores.windowed,
            "CAPPED": scores.capped,
            "BIASED": scores.biased,
            "PRECISION": dot_precision(shape.head_dim, shape.kv_dtype),
            # The interpreter's products of bfloat16 are wrong.
            "WIDENED": shape.dtype == torch.bfloat16 and is_interpreted(),
        },
        aligned=frozenset((*pointers, "block_stride", *(("query_stride",) if shape.head_dim % 16 == 0 else ()))),
        num_warps=sizes.num_warps,
        num_stages=sizes.num_stages,
        max_registers=MOST_REGISTERS,
        made_for=made_for,
    )


def _name(shape: AttentionShape, sizes: TileSizes, scores: ScoreForm) -> str:
    types = "/".join(dict.fromkeys((TRITON_NAMES[shape.dtype], TRITON_NAMES[shape.kv_dtype])))
    flags = (("window", scores.windowed), ("cap", scores.capped), ("alibi", scores.biased))
    return " ".join(
        (
            f"{types} h{shape.kv_heads} g{shape.group} d{shape.head_dim} b{shape.block_size}",
            f"{sizes.rows}x{sizes.keys}",
            *(name for name, is_set in flags if is_set),
        )
    )
