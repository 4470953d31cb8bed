"""The reference backend against attention written out token by token in float64, and the others against it."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from executor.attention import BACKENDS, AttentionParams, ReferenceAttention, StepLayout
from executor.attention.reference import SlotCache
from executor.errors import SettingsError
from executor.families.llama import describe
from executor.memory.arena import BlockArena

_NUM_SLOTS = 600
_HEAD_DIM = 8
_CPU = torch.device("cpu")


def _layout(rng, block_size, counts, lengths):
    blocks = list(range(_NUM_SLOTS // block_size))
    rng.shuffle(blocks)
    tables = [np.array([blocks.pop() for _ in range(-(-n // block_size))], dtype=np.int64) for n in lengths]
    return StepLayout(counts, lengths, tables, block_size)


def _slot(layout, row, position):
    return int(layout.block_tables[row][position // layout.block_size]) * layout.block_size + (
        position % layout.block_size
    )


def _cache(kv_heads):
    """Every slot holds NaN until it is written."""
    empty = torch.full((_NUM_SLOTS, kv_heads, _HEAD_DIM), math.nan, dtype=torch.float64)
    return SlotCache(empty.clone(), empty.clone())


def _fill_past(layout, cache):
    """Keys and values of the tokens before this step."""
    for row, (count, length) in enumerate(zip(layout.num_tokens, layout.context_lengths, strict=True)):
        for position in range(length - count):
            slot = _slot(layout, row, position)
            cache.keys[slot] = torch.randn_like(cache.keys[slot])
            cache.values[slot] = torch.randn_like(cache.values[slot])


def _expected(layout, cache, queries, params):
    result, token = torch.empty_like(queries), 0
    heads, kv_heads = queries.shape[1], cache.keys.shape[1]
    for row, (count, length) in enumerate(zip(layout.num_tokens, layout.context_lengths, strict=True)):
        for position in range(length - count, length):
            first = max(0, position - params.window + 1) if params.window else 0
            slots = [_slot(layout, row, seen) for seen in range(first, position + 1)]
            for head in range(heads):
                keys = cache.keys[slots, head // (heads // kv_heads)]
                values = cache.values[slots, head // (heads // kv_heads)]
                scores = keys @ queries[token, head] * params.scale
                if params.soft_cap:
                    scores = params.soft_cap * torch.tanh(scores / params.soft_cap)
                if params.alibi_slopes:
                    scores = scores + params.alibi_slopes[head] * (torch.arange(first, position + 1) - position)
                result[token, head] = torch.softmax(scores, dim=0) @ values
            token += 1
    return result


_STEPS = {
    "decodes of like length": ([1] * 6, [40, 41, 45, 39, 48, 44]),
    "decodes of unlike lengths": ([1] * 5, [1, 2, 150, 17, 32]),
    "prefills": ([5, 17, 32], [5, 17, 32]),
    "chunks after a past": ([7, 16, 3], [23, 16, 90]),
    "mixed": ([1, 20, 1, 1, 9, 8], [33, 20, 2, 100, 50, 49]),
    "one token": ([1], [1]),
}


def _forms(heads):
    slopes = tuple(0.5 ** (1 + head) for head in range(heads))
    return [
        AttentionParams(0.3),
        AttentionParams(0.3, window=9),
        AttentionParams(2.0, soft_cap=1.5),
        AttentionParams(0.3, alibi_slopes=slopes),
        AttentionParams(0.5, soft_cap=2.0, window=20, alibi_slopes=slopes),
    ]


@pytest.mark.parametrize("shape", _STEPS.values(), ids=_STEPS.keys())
@pytest.mark.parametrize("block_size", [1, 5, 16, 32])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (3, 1)])
def test_equals_attention_written_out(shape, block_size, heads, kv_heads):
    """Unwritten slots hold NaN, so a result that is finite has read nothing past any sequence's end."""
    torch.manual_seed(0)
    layout = _layout(random.Random(1), block_size, *shape)
    cache = _cache(kv_heads)
    _fill_past(layout, cache)
    tokens = sum(layout.num_tokens)
    queries = torch.randn(tokens, heads, _HEAD_DIM, dtype=torch.float64)
    keys, values = torch.randn(2, tokens, kv_heads, _HEAD_DIM, dtype=torch.float64)

    plan = ReferenceAttention().plan(layout, _CPU)
    plan.write(cache, keys, values)
    for params in random.sample(_forms(heads), 2):
        result = plan.attend(cache, queries, params)
        torch.testing.assert_close(result, _expected(layout, cache, queries, params), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("form", range(5))
def test_what_scores_go_through(form):
    layout = _layout(random.Random(), 4, [1, 6, 12], [30, 25, 12])
    cache = _cache(2)
    _fill_past(layout, cache)
    keys, values = torch.randn(2, 19, 2, _HEAD_DIM, dtype=torch.float64)
    queries = torch.randn(19, 4, _HEAD_DIM, dtype=torch.float64)
    plan = ReferenceAttention().plan(layout, _CPU)
    plan.write(cache, keys, values)
    params = _forms(4)[form]
    expected = _expected(layout, cache, queries, params)
    torch.testing.assert_close(plan.attend(cache, queries, params), expected, atol=1e-10, rtol=1e-10)


def test_writes_only_the_slots_of_the_new_tokens():
    layout = StepLayout([3, 1], [5, 4], [np.array([7, 2]), np.array([0])], block_size=4)
    cache = _cache(1)
    plan = ReferenceAttention().plan(layout, _CPU)
    keys = torch.arange(4.0, dtype=torch.float64)[:, None, None].expand(4, 1, _HEAD_DIM)
    plan.write(cache, keys, -keys)
    written = (~cache.keys[:, 0, 0].isnan()).nonzero().flatten().tolist()
    assert written == [3, 8, 30, 31]
    assert cache.keys[[30, 31, 8, 3], 0, 0].tolist() == [0, 1, 2, 3]
    assert cache.values[[30, 31, 8, 3], 0, 0].tolist() == [0, -1, -2, -3]


def test_a_row_reads_what_another_row_writes_in_the_same_step():
    """Two rows share a block; the second attends to the tokens the first one computes now."""
    torch.manual_seed(0)
    layout = StepLayout([4, 2], [4, 6], [np.array([3]), np.array([3, 5])], block_size=4)
    cache = _cache(2)
    queries = torch.randn(6, 2, _HEAD_DIM, dtype=torch.float64)
    keys, values = torch.randn(2, 6, 2, _HEAD_DIM, dtype=torch.float64)
    plan = ReferenceAttention().plan(layout, _CPU)
    plan.write(cache, keys, values)
    result = plan.attend(cache, queries, AttentionParams(1.0))
    torch.testing.assert_close(result, _expected(layout, cache, queries, AttentionParams(1.0)))


_MODEL = describe(
    {
        "vocab_size": 32,
        "hidden_size": 48,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
    }
)


def _run(backend, layout, dtype, tensors, params):
    """Each layer's result, with keys, values and queries of its own; unwritten memory is NaN."""
    blocks = backend.block_layout(_MODEL, layout.block_size, dtype)
    count = _NUM_SLOTS // layout.block_size
    arena = BlockArena(blocks, num_blocks=count, block_size=layout.block_size, device=_CPU)
    arena.data.view(torch.uint8).fill_(0xFF)
    caches = backend.layer_caches(arena)
    assert len(caches) == _MODEL.num_layers
    plan = backend.plan(layout, _CPU)
    for cache, (keys, values, _) in zip(caches, tensors, strict=True):
        plan.write(cache, keys, values)
    return [plan.attend(cache, queries, params) for cache, (_, _, queries) in zip(caches, tensors, strict=True)]


@pytest.mark.parametrize("form", range(5))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block_size", [5, 16])
@pytest.mark.parametrize("name", ["cpu"])
def test_backends_agree(name, block_size, dtype, form):
    try:
        backend = BACKENDS[name]()
    except SettingsError as reason:
        pytest.skip(str(reason))
    layout = _layout(random.Random(), block_size, [20, 1, 7], [20, 1, 7])
    tokens = sum(layout.num_tokens)
    tensors = [
        tuple(torch.randn(tokens, heads, _HEAD_DIM).to(dtype) for heads in (2, 2, 6)) for _ in range(_MODEL.num_layers)
    ]
    params = _forms(6)[form]
    exact = [[x.double() for x in layer] for layer in tensors]
    expected = _run(ReferenceAttention(), layout, torch.float64, exact, params)
    for got, wanted in zip(_run(backend, layout, dtype, tensors, params), expected, strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), wanted, atol=1e-5 if dtype == torch.float32 else 0.02, rtol=0)


def test_the_cpu_backend_refuses_what_it_cannot_store():
    try:
        backend = BACKENDS["cpu"]()
    except SettingsError as reason:
        pytest.skip(str(reason))
    with pytest.raises(SettingsError, match="float16"):
        backend.block_layout(_MODEL, 16, torch.float16)
