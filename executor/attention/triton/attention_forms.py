"""Forms of the attention kernel that the executor can pick, for compiling them ahead of time."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from executor.attention.triton.attention import AttentionShape, ScoreForm, attention_spec
from executor.attention.triton.kernel_spec import KernelSpec
from executor.attention.triton.tile_sizes import HEAD_DIMS, PHASES, Phase, TileSizes, padded, tile_sizes

Form = tuple[AttentionShape, ScoreForm]
Choice = tuple[Phase, torch.dtype, int, bool, TileSizes]

_KV_HEADS = 8
_GROUPS = range(1, 129)
_BF16 = (torch.bfloat16, torch.bfloat16)
_FP16 = (torch.float16, torch.float16)
_FP32 = (torch.float32, torch.float32)
_FP8 = (torch.bfloat16, torch.float8_e4m3fn)


def specs(forms: Iterable[Form] | None = None) -> list[KernelSpec]:
    """The forms for these models: for prefill chunks and decodes, with and without splits, on small and large GPUs."""
    found: dict[str, KernelSpec] = {}
    for shape, scores in _known_forms() if forms is None else forms:
        for phase, is_large, partial in itertools.product(PHASES, (False, True), (False, True)):
            sizes = tile_sizes(phase, shape.group, shape.head_dim, shape.kv_dtype, is_large=is_large)
            spec = attention_spec(shape, sizes, scores, partial)
            found[spec.name] = spec
    return list(found.values())


@functools.cache
def _known_forms() -> tuple[Form, ...]:
    """Every choice of tiles with plain scores, and what scores can go through with a few of them."""
    plain = (ScoreForm(),)
    every = (*plain, ScoreForm(windowed=True), ScoreForm(capped=True, biased=True), ScoreForm(True, True, True))
    forms = [
        *_forms(_BF16, ((2, 16, 16), (4, 32, 16), (3, 64, 8), (8, 64, 32), (71, 64, 16), (1, 80, 16)), plain),
        *_forms(_BF16, ((1, 96, 16), (2, 112, 16), (1, 128, 8), (7, 128, 32), (8, 128, 128), (48, 128, 16)), plain),
        *_forms(_BF16, ((1, 192, 16), (8, 256, 64)), plain),
        *_forms(_BF16, ((1, 64, 16), (4, 128, 16), (2, 256, 16)), every),
        *_forms(_FP16, ((1, 64, 16), (4, 128, 16), (2, 256, 16)), plain),
        *_forms(_FP32, ((3, 64, 16), (71, 64, 16), (4, 128, 16)), plain),
        *_forms(_FP32, ((2, 256, 16),), every),
        *_forms(_FP8, ((3, 64, 16), (48, 128, 16), (2, 256, 16)), plain),
        *_forms(_FP8, ((4, 128, 16),), every),
        *_forms((torch.float16, torch.float8_e4m3fn), ((4, 128, 16),), plain),
        *_forms((torch.float32, torch.float8_e4m3fn), ((4, 128, 16),), plain),
    ]
    known = {choice for shape, _ in forms for choice in choices(shape)}
    for types, head_dim, group in itertools.product((_BF16, _FP32, _FP8), HEAD_DIMS, _GROUPS):
        shape = AttentionShape(*types, _KV_HEADS, group, head_dim, block_size=16)
        if not known.issuperset(found := choices(shape)):
            known |= found
            forms.append((shape, ScoreForm()))
    return tuple(forms)


def choices(shape: AttentionShape) -> set[Choice]:
    """The tiles that a model gets, and what of it beside them makes other code: heads of a group do not."""
    dim = padded(shape.head_dim)
    return {
        (phase, shape.kv_dtype, dim, dim != shape.head_dim, replace(sizes, heads=0))
        for phase in PHASES
        for is_large in (False, True)
        for sizes in [tile_sizes(phase, shape.group, shape.head_dim, shape.kv_dtype, is_large=is_large)]
    }


def _forms(
    types: tuple[torch.dtype, torch.dtype], sizes: Iterable[tuple[int, int, int]], scores: Sequence[ScoreForm]
) -> list[Form]:
    """Forms for types of queries and keys, and (heads of a group, size of a head, size of a block)."""
    return [
        (AttentionShape(*types, _KV_HEADS, group, head_dim, block_size), form)
        for group, head_dim, block_size in sizes
        for form in scores
    ]
