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
Pick = tuple[Phase, bool]
Choice = tuple[Phase, torch.dtype, int, bool, TileSizes]

_KV_HEADS = 8
_GROUPS = range(1, 129)
_BF16 = (torch.bfloat16, torch.bfloat16)
_FP16 = (torch.float16, torch.float16)
_FP32 = (torch.float32, torch.float32)
_FP8 = (torch.bfloat16, torch.float8_e4m3fn)


def specs(forms: Iterable[Form] | None = None) -> list[KernelSpec]:
    """The forms for these models: for prefill chunks and decodes, with and without splits, on small and large GPUs.

    Without models: those of some, with whatever scores can go through, and every choice of tiles beside theirs.
    """
    if forms is not None:
        return _specs_of(forms, _picks())
    listed = _listed_forms()
    known = {_choice(shape, *pick) for shape, _ in listed for pick in _picks()}
    found = _specs_of(listed, _picks()) + _specs_of_other_choices(known)
    return list({spec.name: spec for spec in found}.values())


def _picks() -> list[Pick]:
    return list(itertools.product(PHASES, (False, True)))


def _specs_of(forms: Iterable[Form], picks: Iterable[Pick]) -> list[KernelSpec]:
    found: dict[str, KernelSpec] = {}
    for (shape, scores), (phase, is_large), partial in itertools.product(forms, picks, (False, True)):
        sizes = tile_sizes(phase, shape.group, shape.head_dim, shape.kv_dtype, is_large=is_large)
        spec = attention_spec(shape, sizes, scores, partial)
        found[spec.name] = spec
    return list(found.values())


def _specs_of_other_choices(known: set[Choice]) -> list[KernelSpec]:
    """One model for each choice of tiles that is not known, which it then is."""
    specs: list[KernelSpec] = []
    for types, head_dim, group in itertools.product((_BF16, _FP32, _FP8), HEAD_DIMS, _GROUPS):
        shape = AttentionShape(*types, _KV_HEADS, group, head_dim, block_size=16)
        for pick in _picks():
            choice = _choice(shape, *pick)
            if choice not in known:
                known.add(choice)
                specs += _specs_of([(shape, ScoreForm())], [pick])
    return specs


def _choice(shape: AttentionShape, phase: Phase, is_large: bool) -> Choice:
    """The tiles that a model gets, and what of it beside them makes other code: heads of a group do not."""
    dim = padded(shape.head_dim)
    sizes = tile_sizes(phase, shape.group, shape.head_dim, shape.kv_dtype, is_large=is_large)
    return (phase, shape.kv_dtype, dim, dim != shape.head_dim, replace(sizes, heads=0))


@functools.cache
def _listed_forms() -> tuple[Form, ...]:
    """Models with plain scores, and what scores can go through with a few of them."""
    plain = (ScoreForm(),)
    every = (*plain, ScoreForm(windowed=True), ScoreForm(capped=True, biased=True), ScoreForm(True, True, True))
    return (
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
    )


def _forms(
    types: tuple[torch.dtype, torch.dtype], sizes: Iterable[tuple[int, int, int]], scores: Sequence[ScoreForm]
) -> list[Form]:
    """Forms for types of queries and keys, and (heads of a group, size of a head, size of a block)."""
    return [
        (AttentionShape(*types, _KV_HEADS, group, head_dim, block_size), form)
        for group, head_dim, block_size in sizes
        for form in scores
    ]
