"""Attention over blocks against the formula in float64, in every number format and for every form of a model."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.paged_rows import PagedRows
from benchmarks.gpu.reference import attention, relative_error, rotated
from benchmarks.gpu.results import Checks, within
from benchmarks.gpu.shapes import THETA, Shape
from executor.attention import AnyBackend, AttentionParams, AttentionPlan
from executor.description import RotaryPositions
from executor.rotary import Angles, RotaryEmbedding

Rows = tuple[tuple[int, int], ...]
Value = TypeVar("Value")

# Largest relative error of a vector; several times what rounding to the format leaves.
LIMITS = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}

# Rows, and with how many tokens in common they begin.
_STEPS: dict[str, tuple[Rows, int]] = {
    "decodes": (((1, 1), (1, 7), (1, 128), (1, 129), (1, 700), (1, 1500)), 0),
    "long decode": (((1, 9000),), 0),
    "decodes of a prefix": (tuple((1, 1025 + 37 * row) for row in range(12)), 1024),
    "prefills": (((1, 1), (33, 33), (128, 128), (300, 300)), 0),
    "chunks after a past": (((64, 1000), (5, 70), (257, 400)), 0),
    "mixed": (((1, 300), (100, 500), (1, 17), (1, 1), (40, 40), (1, 2000)), 0),
}
_SHAPES = [
    Shape("GPT-2", 12, 12, 64),
    Shape("SmolLM2", 9, 3, 64),
    Shape("LLaMA-3 8B", 32, 8, 128),
    Shape("Gemma 2B", 8, 1, 256),
    Shape("Phi-2", 32, 32, 80),
    Shape("Phi-3", 32, 32, 96),
    Shape("Falcon 7B", 71, 1, 64),
    Shape("small", 16, 2, 32),
]
_FORMS: dict[str, Callable[[float, tuple[float, ...]], AttentionParams]] = {
    "plain": lambda scale, _: AttentionParams(scale),
    "window": lambda scale, _: AttentionParams(scale, window=50),
    "soft cap": lambda scale, _: AttentionParams(3 * scale, soft_cap=2.0),
    "alibi": lambda scale, slopes: AttentionParams(scale, alibi_slopes=slopes),
    "all": lambda scale, slopes: AttentionParams(scale, soft_cap=5.0, window=150, alibi_slopes=slopes),
}
_TINY_STEPS: dict[str, tuple[Rows, int]] = {
    "mixed": (((1, 17), (5, 21), (1, 1)), 0),
    "decodes of a prefix": (((1, 33), (1, 40), (1, 35)), 32),
}
_TINY_SHAPES = [Shape("tiny", 4, 2, 32), Shape("tiny", 3, 1, 64)]


@dataclass(frozen=True, slots=True)
class _Case:
    """A step of a model.

    Attributes:
        form: of what scores go through.
        turned: entries of each head that rotary embedding turns as keys and values are written; 0: it has none.
    """

    step: str
    shape: Shape
    block_size: int
    dtype: torch.dtype
    kv_dtype: torch.dtype
    form: str
    turned: int

    def params(self) -> AttentionParams:
        slopes = tuple(0.5 ** (1 + 8 * head / self.shape.heads) for head in range(self.shape.heads))
        scale = self.shape.head_dim**-0.5
        return _FORMS[self.form](scale, slopes)


def check_attention(
    machine: Machine, make_backend: Callable[[], AnyBackend], checks: Checks, seconds: float, seed: int
) -> None:
    """Checks fresh combinations of all choices until the time is over."""
    for number, case in enumerate(within(seconds, "attention", _cases(machine, random.Random(seed)))):
        step, shared = (_TINY_STEPS if machine.tiny else _STEPS)[case.step]
        rows = PagedRows(
            make_backend,
            case.shape,
            case.block_size,
            step,
            case.dtype,
            case.kv_dtype,
            machine.generator(seed + number),
            shared,
        )
        checks.measure(
            "attention",
            LIMITS[case.dtype],
            partial(_error, rows, case),
            step=case.step,
            heads=f"{case.shape.heads}/{case.shape.kv_heads} x {case.shape.head_dim}",
            block_size=case.block_size,
            dtype=str(case.dtype).removeprefix("torch."),
            kv_dtype=str(case.kv_dtype).removeprefix("torch."),
            form=case.form,
            turned=case.turned,
            seed=seed + number,
        )


def _error(rows: PagedRows, case: _Case) -> float:
    """Of attention after keys and values were written, and turned before where the case says so."""
    params, keys, queries = case.params(), rows.keys, rows.queries
    plan: AttentionPlan[object] = rows.plan()
    if case.turned:
        rotary = RotaryEmbedding(RotaryPositions(THETA, case.turned))
        every = [_angles(rotary, length, queries.device) for length in rows.layout.context_lengths]
        keys = [rotated(part, angles).to(case.dtype) for part, angles in zip(keys, every, strict=True)]
        rows.write_past(keys, rows.values)
        angles = rows.new([cosines for cosines, _ in every]), rows.new([sines for _, sines in every])
        queries = rotated(queries, angles).to(case.dtype)
        asked = plan.rotate_and_write(rows.cache, rows.queries, rows.new(rows.keys), rows.new(rows.values), angles)
    else:
        rows.write_past(keys, rows.values)
        plan.write(rows.cache, rows.new(keys), rows.new(rows.values))
        asked = queries
    result = plan.attend(rows.cache, asked, params)

    worst, first = 0.0, 0
    for count, seen, values in zip(rows.layout.num_tokens, keys, rows.values, strict=True):
        part = slice(first, first + count)
        held, kept = (stored.to(case.kv_dtype).float() for stored in (seen, values))
        expected = attention(queries[part], held, kept, params)
        worst, first = max(worst, relative_error(result[part], expected)), first + count
    return worst


def _angles(rotary: RotaryEmbedding, length: int, device: torch.device) -> Angles:
    positions = torch.arange(length, device=device)
    return rotary.angles(positions, positions + 1)


def _cases(machine: Machine, rng: random.Random) -> list[_Case]:
    count = 4 if machine.tiny else 60
    if machine.tiny:
        shapes, formats = _TINY_SHAPES, [(dtype, dtype) for dtype in (torch.float32, torch.float16)]
        steps, block_sizes, forms = list(_TINY_STEPS), [8, 16], ["plain", "all"]
    else:
        shapes, formats = _SHAPES, [(dtype, dtype) for dtype in LIMITS]
        formats += [(torch.bfloat16, torch.float8_e4m3fn)] if machine.has_fp8 else []
        steps, block_sizes, forms = list(_STEPS), [8, 16, 32, 64, 128], list(_FORMS)
    return [
        _Case(step, shape, block_size, dtype, kv_dtype, form, turned)
        for step, shape, block_size, (dtype, kv_dtype), form, turned in zip(
            _spread(rng, steps, count),
            _spread(rng, shapes, count),
            _spread(rng, block_sizes, count),
            _spread(rng, formats, count),
            _spread(rng, forms, count),
            _spread(rng, [0, 32], count),
            strict=True,
        )
    ]


def _spread(rng: random.Random, values: Sequence[Value], count: int) -> list[Value]:
    """The values in one order after another, so that each comes soon, and beside ever different others."""
    column: list[Value] = []
    while len(column) < count:
        column += rng.sample(values, len(values))
    return column[:count]
