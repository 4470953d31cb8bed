"""Attention over block tables, of each level, against float64. All memory begins as NaN, in every number format."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest
import torch

from executor.memory.arena import BlockArena
from executor.native import Crew, Library
from executor.native.attention import AttentionKernels, StepRows
from executor.native.structures import AttentionParams, KvCache, KvKind

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

KINDS = (KvKind.FLOAT32, KvKind.BFLOAT16, KvKind.INT8)


@dataclass
class Rules:
    """What a query sees of a key, and how much of it."""

    scale: float = 0.2
    soft_cap: float = 0
    window: int = 0
    slopes: Floats | None = None

    def params(self, heads: int) -> AttentionParams:
        slopes = None if self.slopes is None else self.slopes.ctypes.data
        return AttentionParams(self.scale, self.soft_cap, self.window, slopes, heads)

    def weights(self, products: Doubles, positions: npt.NDArray[np.int64]) -> Doubles:
        """Softmax of products [heads, queries, keys] of the queries at these positions."""
        scores = products * self.scale
        if self.soft_cap:
            scores = self.soft_cap * np.tanh(scores / self.soft_cap)
        apart = np.arange(products.shape[2])[None, :] - positions[:, None]
        if self.slopes is not None:
            scores = scores + self.slopes[:, None, None] * apart
        seen = (apart <= 0) & ((apart > -self.window) if self.window else True)
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return weights / weights.sum(axis=-1, keepdims=True)


@dataclass
class Sequence:
    """Queries [tokens, heads, head_dim], keys and values [tokens, kv_heads, head_dim] of all its tokens."""

    queries: Floats
    keys: Floats
    values: Floats
    table: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.queries)

    def expected(self, kind: KvKind, rules: Rules, start: int, end: int) -> Doubles:
        """Attention of the tokens from `start` to `end`, [tokens, heads, head_dim], in float64."""
        group = self.queries.shape[1] // self.keys.shape[1]
        keys, values = (np.repeat(stored(kind, x[:end]), group, axis=1) for x in (self.keys, self.values))
        products = np.einsum("qhd,khd->hqk", self.queries[start:end].astype(np.float64), keys)
        return np.einsum("hqk,khd->qhd", rules.weights(products, np.arange(start, end)), values)


def stored(kind: KvKind, x: Floats) -> Doubles:
    """What remains of numbers [..., head_dim] that are stored."""
    if kind is KvKind.FLOAT32:
        return x.astype(np.float64)
    if kind is KvKind.BFLOAT16:
        return torch.from_numpy(x).bfloat16().double().numpy()
    scales = np.abs(x).max(axis=-1, keepdims=True).astype(np.float64) / 127
    return np.rint(x / scales) * scales


class Memory:
    """One layer's keys and values, and kernels that work on them."""

    def __init__(
        self, library: Library, kind: KvKind, *, block_size: int, kv_heads: int, head_dim: int, threads: int = 2
    ) -> None:
        self.kind = kind
        self.block_size = block_size
        self._kernels = AttentionKernels(library, Crew(library, threads))
        layout = self._kernels.block_layout(
            kind, num_layers=2, block_size=block_size, kv_heads=kv_heads, head_dim=head_dim
        )
        num_blocks = 2200 // block_size + 10
        self.arena = BlockArena(layout, num_blocks=num_blocks, block_size=block_size, device=torch.device("cpu"))
        self.arena.data.fill_(0xFF)
        self._cache: KvCache = layout.cache(self.arena, 1)
        self._free = list(np.random.default_rng().permutation(num_blocks))

    def give_blocks(self, sequence: Sequence) -> None:
        """As many as its tokens need, in any order."""
        count = -(-len(sequence) // self.block_size)
        sequence.table = np.array([self._free.pop() for _ in range(count)], dtype=np.int64)

    def step(self, rules: Rules, *parts: tuple[Sequence, int, int]) -> list[Floats]:
        """Writes and attends tokens [start, end) of each sequence in one step."""
        heads = parts[0][0].queries.shape[1]
        rows = StepRows(
            [end - start for _, start, end in parts],
            [end for _, _, end in parts],
            [sequence.table for sequence, _, _ in parts],
        )
        new = [
            np.concatenate([getattr(sequence, name)[start:end] for sequence, start, end in parts])
            for name in ("keys", "values", "queries")
        ]
        self._kernels.write(self._cache, rows, new[0], new[1])
        attended = self._kernels.attend(self._cache, rows, rules.params(heads), new[2])
        return np.split(attended, np.cumsum([end - start for _, start, end in parts])[:-1])

    def write(self, sequence: Sequence, end: int) -> None:
        """Tokens before `end`, without attending."""
        if end:
            self._kernels.write(
                self._cache, StepRows([end], [end], [sequence.table]), sequence.keys[:end], sequence.values[:end]
            )


def new_sequence(rng: np.random.Generator, length: int, heads: int, kv_heads: int, head_dim: int) -> Sequence:
    queries = rng.standard_normal((length, heads, head_dim), dtype=np.float32)
    keys, values = rng.standard_normal((2, length, kv_heads, head_dim), dtype=np.float32)
    return Sequence(queries, keys, values)


def assert_close(kind: KvKind, got: Floats, expected: Doubles) -> None:
    # A number at the border between two bytes may become either.
    tolerance = 0.05 if kind is KvKind.INT8 else 2e-5
    np.testing.assert_allclose(got, expected, atol=tolerance, rtol=0)


def any_rules(rng: np.random.Generator, heads: int) -> Rules:
    return Rules(
        scale=float(rng.uniform(0.05, 0.5)),
        soft_cap=float(rng.choice([0, 0, 2.5])),
        window=int(rng.choice([0, 0, 1, 7, 64, 200])),
        slopes=rng.uniform(0, 0.1, heads).astype(np.float32) if rng.random() < 0.3 else None,
    )


# Heads, and those of keys and values.
_GROUPS = [(1, 1), (3, 1), (4, 4), (9, 3), (14, 2), (20, 1)]
_HEAD_DIMS = [1, 8, 15, 16, 20, 64, 80, 128]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block_size", [1, 3, 8, 16, 32, 48])
def test_equals_attention_in_float64(library, rng, kind, block_size):
    """Steps of decodes, prompts and chunks after a past, of any shape and with any rules."""
    for _ in range(3):
        heads, kv_heads = _GROUPS[rng.integers(len(_GROUPS))]
        head_dim = int(rng.choice(_HEAD_DIMS))
        memory = Memory(library, kind, block_size=block_size, kv_heads=kv_heads, head_dim=head_dim)
        rules = any_rules(rng, heads)
        parts = []
        for _ in range(rng.integers(1, 6)):
            sequence = new_sequence(rng, int(rng.integers(1, 200)), heads, kv_heads, head_dim)
            end = len(sequence)
            start = end - 1 if rng.random() < 0.5 else int(rng.integers(end))
            memory.give_blocks(sequence)
            memory.write(sequence, start)
            parts.append((sequence, start, end))
        print(heads, kv_heads, head_dim, rules, [part[1:] for part in parts])
        for got, part in zip(memory.step(rules, *parts), parts, strict=True):
            assert_close(kind, got, part[0].expected(kind, rules, *part[1:]))


@pytest.mark.parametrize("rules", [Rules(), Rules(window=300), Rules(soft_cap=3)], ids=["all", "window", "soft cap"])
@pytest.mark.parametrize("kind", KINDS)
def test_long_contexts(library, rng, kind, rules):
    """Of several segments; one sequence alone is shared by the threads, beside a long one many short ones are not."""
    memory = Memory(library, kind, block_size=16, kv_heads=2, head_dim=32)
    long = new_sequence(rng, 1500, 6, 2, 32)
    memory.give_blocks(long)
    memory.write(long, 1430)
    for start, end in ((1430, 1431), (1431, 1499), (1499, 1500)):
        (got,) = memory.step(rules, (long, start, end))
        assert_close(kind, got, long.expected(kind, rules, start, end))
    short = [new_sequence(rng, 16, 6, 2, 32) for _ in range(40)]
    for sequence in short:
        memory.give_blocks(sequence)
    got, *_ = memory.step(rules, (long, 1400, 1500), *((sequence, 0, 16) for sequence in short))
    assert_close(kind, got, long.expected(kind, rules, 1400, 1500))


@pytest.mark.parametrize("block_size", [16, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_and_threads_change_no_bit(library, rng, kind, block_size):
    """A prompt at once, in chunks, and token by token, by one to three threads."""
    heads, kv_heads, head_dim = 6, 2, 24
    rules = any_rules(rng, heads)
    print(rules)
    sequence = new_sequence(rng, 330, heads, kv_heads, head_dim)

    def attended(ends: list[int], threads: int) -> bytes:
        memory = Memory(library, kind, block_size=block_size, kv_heads=kv_heads, head_dim=head_dim, threads=threads)
        memory.give_blocks(sequence)
        parts = zip([0, *ends], [*ends, len(sequence)], strict=True)
        return np.concatenate([memory.step(rules, (sequence, *part))[0] for part in parts]).tobytes()

    at_once = attended([], 1)
    assert attended([], 2) == at_once
    assert attended(sorted(rng.choice(range(1, 330), 9, replace=False).tolist()), 3) == at_once
    assert attended([100, *range(300, 330)], 2) == at_once
    assert attended([*range(1, 40), 256, 257, 258, 259, 272], 1) == at_once


@pytest.mark.parametrize("kind", KINDS)
def test_other_rows_change_no_bit(library, rng, kind):
    rules = Rules()
    sequences = [new_sequence(rng, length, 9, 3, 16) for length in (300, 40, 513, 17, 64)]
    memory = Memory(library, kind, block_size=16, kv_heads=3, head_dim=16)
    for sequence in sequences:
        memory.give_blocks(sequence)
        memory.write(sequence, len(sequence))
    parts = [
        (sequence, len(sequence) - count, len(sequence))
        for sequence, count in zip(sequences, (1, 40, 1, 3, 20), strict=True)
    ]
    together = memory.step(rules, *parts)
    for part, got in zip(parts, together, strict=True):
        assert memory.step(rules, part)[0].tobytes() == got.tobytes()


@pytest.mark.parametrize("block_size", [16, 3])
@pytest.mark.parametrize("kind", [KvKind.FLOAT32, KvKind.BFLOAT16])
def test_later_tokens_may_hold_anything(library, rng, kind, block_size):
    """NaN and infinity among the new tokens change nothing for those before them in the same step."""
    sequence = new_sequence(rng, 90, 6, 2, 16)
    memory = Memory(library, kind, block_size=block_size, kv_heads=2, head_dim=16)
    memory.give_blocks(sequence)
    (clean,) = memory.step(Rules(), (sequence, 0, 90))
    sequence.values[61:] = [math.nan, math.inf] * 8
    sequence.keys[61:] = [math.inf, math.nan] * 8
    (got,) = memory.step(Rules(), (sequence, 0, 90))
    assert got[:61].tobytes() == clean[:61].tobytes()
    assert np.isnan(got[61:]).any()


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_that_the_window_has_left_may_hold_anything(library, rng, kind):
    sequence = new_sequence(rng, 600, 4, 2, 16)
    memory = Memory(library, kind, block_size=16, kv_heads=2, head_dim=16)
    memory.give_blocks(sequence)
    memory.write(sequence, 600)
    rules = Rules(window=100)
    (clean,) = memory.step(rules, (sequence, 590, 600))
    memory.arena.blocks[sequence.table[: (590 - 100) // 16]] = 0xFF
    (got,) = memory.step(rules, (sequence, 590, 600))
    assert got.tobytes() == clean.tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_a_copied_block_is_as_good(library, rng, kind):
    """A block's bytes mean the same wherever they lie."""
    sequence = new_sequence(rng, 70, 4, 2, 20)
    memory = Memory(library, kind, block_size=16, kv_heads=2, head_dim=20)
    memory.give_blocks(sequence)
    (clean,) = memory.step(Rules(), (sequence, 0, 70))
    old = sequence.table
    memory.give_blocks(sequence)
    memory.arena.blocks[sequence.table] = memory.arena.blocks[old]
    memory.arena.blocks[old] = 0xFF
    (got,) = memory.step(Rules(), (sequence, 69, 70))
    assert got.tobytes() == clean[69:].tobytes()


def test_rows_may_read_what_other_rows_write(library, rng):
    """Two rows share a block; the second attends to the tokens that the first one computes now."""
    first = new_sequence(rng, 16, 2, 1, 16)
    second = new_sequence(rng, 20, 2, 1, 16)
    second.keys[:16], second.values[:16] = first.keys, first.values
    memory = Memory(library, KvKind.FLOAT32, block_size=16, kv_heads=1, head_dim=16)
    memory.give_blocks(first)
    memory.give_blocks(second)
    second.table[0] = first.table[0]
    _, got = memory.step(Rules(), (first, 0, 16), (second, 16, 20))
    assert_close(KvKind.FLOAT32, got, second.expected(KvKind.FLOAT32, Rules(), 16, 20))


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_no_larger_than_what_they_hold(library, kind):
    kernels = AttentionKernels(library, Crew(library, 1))
    numbers = 2 * 30 * 16 * 3 * 64
    layout = kernels.block_layout(kind, num_layers=30, block_size=16, kv_heads=3, head_dim=64)
    scales = 2 * 30 * 16 * 3 * 4 if kind is KvKind.INT8 else 0
    assert layout.bytes_per_block == numbers * {KvKind.FLOAT32: 4, KvKind.BFLOAT16: 2, KvKind.INT8: 1}[kind] + scales
    for block_size, kv_heads, head_dim in ((1, 1, 1), (3, 2, 20), (48, 1, 80)):
        layout = kernels.block_layout(kind, num_layers=1, block_size=block_size, kv_heads=kv_heads, head_dim=head_dim)
        assert layout.bytes_per_block % 64 == 0
        assert layout.bytes_per_block >= 2 * block_size * kv_heads * head_dim
