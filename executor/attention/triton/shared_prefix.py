"""Attention over prefixes that rows share: which form of the kernel is launched, and with what."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import torch

from executor.attention.interface import AttentionParams
from executor.attention.triton.attention import AttentionShape, ScoreForm, attending_spec
from executor.attention.triton.block_cache import BlockCache
from executor.attention.triton.kernel_spec import KernelSpec
from executor.attention.triton.kernels.shared_prefix import shared_prefix_attention
from executor.attention.triton.prefix_work import ITEM_FIELDS, TILE_ROWS
from executor.attention.triton.tile_sizes import shared_prefix_sizes

_KV_HEADS = 8
_BF16 = (torch.bfloat16, torch.bfloat16)
_FP16 = (torch.float16, torch.float16)
_FP32 = (torch.float32, torch.float32)
_FP8 = (torch.bfloat16, torch.float8_e4m3fn)


def attend_prefixes(
    items: torch.Tensor,
    block_ids: torch.Tensor,
    cache: BlockCache,
    queries: torch.Tensor,
    params: AttentionParams,
    slopes: torch.Tensor,
    parts: torch.Tensor,
    log_sums: torch.Tensor,
) -> None:
    """Computes the items' results; those of rows and parts that no item names are left as they are.

    Args:
        items: as of `executor.attention.triton.prefix_work`.
        block_ids: the rows' block tables, int32.
        queries: [tokens, heads, head_dim]; a token's heads lie one after the other.
        slopes: [heads], float32; of any length where there are none.
        parts: [parts, results, heads, head_dim], float32.
        log_sums: [parts, results, heads], float32: log2 of the sum of exp2(score / ln 2) over a part's keys; -inf where
            a row's window has none of them.
    """
    shape = AttentionShape.of(cache, queries)
    spec = shared_prefix_spec(shape, ScoreForm.of(params))
    head_tiles = -(-shape.group // spec.constants["HEADS"])
    spec.launch(
        (len(items), shape.kv_heads * head_tiles),
        queries,
        cache.keys,
        cache.values,
        block_ids,
        items,
        slopes,
        parts,
        log_sums,
        cache.keys.stride(0),
        queries.stride(0),
        parts.shape[1],
        params.scale,
        params.soft_cap,
        params.window,
    )


@functools.cache
def shared_prefix_spec(shape: AttentionShape, scores: ScoreForm) -> KernelSpec:
    """The kernel's form."""
    sizes = shared_prefix_sizes(shape.group, shape.head_dim, shape.kv_dtype)
    assert sizes, f"there is no such form for {shape}"
    return attending_spec(
        "shared prefix",
        shared_prefix_attention,
        shape,
        sizes,
        scores,
        tables={"block_ids": "*i32", "items": "*i32"},
        results={"parts": "*fp32", "log_sums": "*fp32"},
        constants={"ITEM_FIELDS": ITEM_FIELDS, "TILE_ROWS": TILE_ROWS},
    )


def specs(forms: Iterable[tuple[AttentionShape, ScoreForm]] | None = None) -> list[KernelSpec]:
    """The forms for these models."""
    return [shared_prefix_spec(shape, scores) for shape, scores in (_known_forms() if forms is None else forms)]


def _known_forms() -> Iterator[tuple[AttentionShape, ScoreForm]]:
    """Every size of tiles with all that scores can go through, and some with plain ones."""
    plain, every = ScoreForm(), ScoreForm(windowed=True, capped=True, biased=True)
    for types, group, head_dim, block_size, scores in (
        (_BF16, 1, 64, 16, plain),
        (_BF16, 3, 64, 16, every),
        (_BF16, 71, 64, 8, every),
        (_BF16, 1, 80, 32, plain),
        (_BF16, 1, 128, 16, every),
        (_BF16, 2, 128, 16, plain),
        (_BF16, 4, 128, 16, plain),
        (_BF16, 4, 128, 128, every),
        (_BF16, 7, 128, 16, every),
        (_BF16, 8, 128, 16, plain),
        (_BF16, 2, 256, 16, every),
        (_BF16, 4, 256, 16, every),
        (_FP16, 4, 128, 16, plain),
        (_FP32, 3, 64, 16, every),
        (_FP32, 4, 128, 16, plain),
        (_FP32, 2, 128, 16, every),
        (_FP8, 3, 64, 16, every),
        (_FP8, 4, 128, 16, every),
        (_FP8, 8, 128, 16, plain),
        (_FP8, 4, 256, 16, every),
        ((torch.float32, torch.float8_e4m3fn), 4, 128, 16, plain),
    ):
        yield AttentionShape(*types, _KV_HEADS, group, head_dim, block_size), scores
