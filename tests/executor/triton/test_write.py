"""Fused rotary embedding and write into blocks, against `executor.rotary.rotate` and plain indexing.

The interpreter cuts off what bfloat16 can't hold instead of rounding, and rounds to 8 bits wrongly: here bfloat16 is
only moved, and 8 bits get numbers that they hold. On a GPU all of it is compared.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from executor.attention.triton.block_cache import BlockCache
from executor.attention.triton.write import rotate_and_write, write_kv
from executor.rotary import rotate
from tests.executor.triton.vast_memory import vast_memory
from tests.executor.triton.written import (
    FP8,
    check_written,
    empty_cache,
    fresh_angles,
    fresh_heads,
    fresh_slots,
    same,
    written,
)

# One program and several, groups and none, sizes that are no power of two, parts of heads.
_SHAPES = [
    (4, 2, 32, 32, 8),
    (9, 3, 64, 64, 16),
    (3, 3, 80, 32, 32),
    (17, 1, 96, 24, 64),
    (10, 5, 128, 128, 128),
    (2, 1, 40, 20, 1),
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "dim", "block_size"), _SHAPES)
def test_rotated_and_written_as_one_after_the_other(rng, dtype, heads, kv_heads, head_dim, dim, block_size):
    cache = empty_cache(dtype, kv_heads, block_size, head_dim)
    queries, keys, values = fresh_heads(dtype, 4, heads, kv_heads, head_dim)
    angles, slots = fresh_angles(4, dim), fresh_slots(rng, 4, cache)
    expected = written(cache, rotate(keys, *angles), values, slots)
    before = [tensor.clone() for tensor in (queries, keys, values)]

    turned = rotate_and_write(cache, queries, keys, values, *angles, slots)

    assert same(turned, rotate(queries, *angles))
    assert turned.is_contiguous()
    check_written(cache, expected)
    for tensor, was in zip((queries, keys, values), before, strict=True):
        assert same(tensor, was)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("kv_heads", "head_dim"), [(3, 64), (1, 96), (9, 128)])
def test_written_as_they_are(rng, dtype, kv_heads, head_dim):
    cache = empty_cache(dtype, kv_heads, 16, head_dim)
    _, keys, values = fresh_heads(dtype, 5, 2, kv_heads, head_dim)
    slots = fresh_slots(rng, 5, cache, empty=2)
    expected = written(cache, keys, values, slots)
    write_kv(cache, keys, values, slots)
    check_written(cache, expected)


def test_nothing_is_written_for_rows_without_a_slot(seed):
    """Rows that fill up a CUDA graph's batch, whatever they hold."""
    cache = empty_cache(torch.float16, 2, 16, 32)
    expected = BlockCache(cache.keys.clone(), cache.values.clone())
    queries, keys, values = fresh_heads(torch.float16, 3, 4, 2, 32)
    angles, slots = fresh_angles(3, 32), torch.full((3,), -1)
    write_kv(cache, keys, values, slots)
    assert same(rotate_and_write(cache, queries, keys, values, *angles, slots), rotate(queries, *angles))
    check_written(cache, expected)


def test_a_step_without_tokens_is_none(seed):
    cache = empty_cache(torch.float16, 2, 16, 32)
    queries, keys, values = fresh_heads(torch.float16, 0, 4, 2, 32)
    write_kv(cache, keys, values, torch.empty(0, dtype=torch.int64))
    assert not len(
        rotate_and_write(cache, queries, keys, values, *fresh_angles(0, 32), torch.empty(0, dtype=torch.int64))
    )


def _exact_in_8_bits(shape):
    """Any numbers that 8 bits hold, but those that the interpreter gets wrong: 0 and the subnormal ones."""
    numbers = torch.arange(256, dtype=torch.uint8).view(FP8).float()
    numbers = numbers[numbers.isfinite() & (numbers.abs() >= 2**-6)]
    return numbers[torch.randint(len(numbers), shape)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_8_bits_hold_what_they_can_and_the_largest_number_for_what_is_larger(rng, dtype):
    cache = empty_cache(FP8, 2, 16, 64)
    fused = _exact_in_8_bits((6, 6, 64)).to(dtype)
    fused[:, :, ::7] = torch.tensor([449, -600, 6e4, -6e4, float("inf"), -float("inf")], dtype=dtype)[:, None, None]
    queries, keys, values = fused.split((2, 2, 2), dim=1)
    slots = fresh_slots(rng, 6, cache)
    expected = written(cache, keys, values, slots)
    write_kv(cache, keys, values, slots)
    check_written(cache, expected)

    # Turned by nothing, keys are the same.
    rotated = empty_cache(FP8, 2, 16, 64)
    keys.nan_to_num_(posinf=500, neginf=-500)
    rotate_and_write(rotated, queries, keys, values, torch.ones(6, 1, 32), torch.zeros(6, 1, 32), slots)
    check_written(rotated, expected)


def test_a_layers_blocks_may_lie_apart(rng):
    """As in an arena whose blocks hold all layers."""
    arena = torch.full((6, 3, 2, 2, 16, 32), float("nan"), dtype=torch.float16)
    cache = BlockCache(arena[:, 1, 0], arena[:, 1, 1])
    _, keys, values = fresh_heads(torch.float16, 4, 4, 2, 32)
    slots = fresh_slots(rng, 4, cache)
    expected = written(cache, keys, values, slots)
    write_kv(cache, keys, values, slots)
    check_written(cache, expected)
    assert arena[:, [0, 2]].isnan().all()


def test_blocks_and_tokens_that_lie_beyond_32_bits(seed):
    """The last of three blocks, and of three tokens, lies 3 * 2 ** 31 elements behind the first."""
    apart = 3 << 30
    memory = vast_memory(2 * apart + (1 << 20)).view(FP8)
    shape, strides = (3, 2, 16, 32), (apart, 16 * 32, 32, 1)
    cache = BlockCache(*(memory.as_strided(shape, strides, offset) for offset in (0, 1 << 16)))
    new = vast_memory(2 * apart + (1 << 20)).view(FP8)
    keys, values = (new.as_strided((3, 2, 32), (apart, 32, 1), offset) for offset in (0, 1 << 16))
    slots = torch.tensor([2 * 16 + 5, -1, 16 + 3])
    for heads in (keys, values):
        for token in heads:
            token.copy_(_exact_in_8_bits((2, 32)))
    write_kv(cache, keys, values, slots)
    for token, slot in ((0, 37), (2, 19)):
        assert torch.equal(cache.keys[slot // 16, :, slot % 16].float(), keys[token].float())
        assert torch.equal(cache.values[slot // 16, :, slot % 16].float(), values[token].float())


def _fits():
    queries, keys, values = fresh_heads(torch.float16, 3, 4, 2, 32)
    cosines, sines = fresh_angles(3, 32)
    return {
        "cache": empty_cache(torch.float16, 2, 16, 32),
        "queries": queries,
        "keys": keys,
        "values": values,
        "cosines": cosines,
        "sines": sines,
        "slots": torch.arange(3),
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("queries", torch.zeros(3, 4, 64, dtype=torch.float16)),
        ("keys", torch.zeros(3, 1, 32, dtype=torch.float16)),
        ("values", torch.zeros(3, 2, 32)),
        ("values", torch.zeros(3, 32, 2, dtype=torch.float16).mT),
        ("slots", torch.arange(4)),
        ("slots", torch.arange(3, dtype=torch.int32)),
        ("cosines", torch.zeros(3, 1, 17)),
        ("sines", torch.zeros(3, 1, 16, dtype=torch.float16)),
        ("cache", empty_cache(torch.bfloat16, 2, 16, 32)),
        ("cache", empty_cache(torch.float16, 2, 16, 64)),
    ],
    ids=itertools.count(),
)
def test_what_does_not_fit_is_named(field, value):
    with pytest.raises(ValueError, match="keys|values" if field == "keys" else field):
        rotate_and_write(**(_fits() | {field: value}))


@pytest.mark.parametrize(
    ("keys", "values", "message"),
    [
        (torch.zeros(3, 2, 12, 32), torch.zeros(3, 2, 12, 32), "power of two"),
        (torch.zeros(3, 2, 16, 32), torch.zeros(3, 2, 16, 64), "same shape"),
        (torch.zeros(3, 2, 16, 32), torch.zeros(3, 2, 16, 32).half(), "type"),
        (torch.zeros(3, 2, 16, 32), torch.zeros(3, 2, 2, 16, 32)[:, 0], "strides"),
        (torch.zeros(3, 2, 32, 16).mT, torch.zeros(3, 2, 32, 16).mT, "contiguous"),
    ],
)
def test_a_cache_that_lies_otherwise_is_refused(keys, values, message):
    with pytest.raises(ValueError, match=message):
        BlockCache(keys, values)
