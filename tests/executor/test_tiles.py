"""The tables that say which program of Triton's attention computes what."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from executor.attention.triton.tile_sizes import tile_sizes
from executor.attention.triton.tiles import (
    TILE_FIELDS,
    Rows,
    flat_tables,
    max_decode_splits,
    query_tiles,
    result_tokens,
    split_keys,
    written_slots,
)

_KEYS = 64


def _rows(counts, lengths):
    counts, lengths = np.array(counts), np.array(lengths)
    return Rows(counts, lengths, np.cumsum(lengths) - lengths, np.cumsum(counts) - counts)


def _decodes(lengths):
    return query_tiles(_rows([1] * len(lengths), lengths), 1)


def test_every_query_is_in_one_tile_and_the_longest_come_first():
    counts = [random.randint(1, 40) for _ in range(9)]
    lengths = [count + random.randint(0, 90) for count in counts]
    rows = _rows(counts, lengths)
    tiles = query_tiles(rows, 16)
    assert tiles.shape == (sum(-(-count // 16) for count in counts), TILE_FIELDS)
    covered = [token for _, token, count, *_ in tiles.tolist() for token in range(token, token + count)]
    assert sorted(covered) == list(range(sum(counts)))
    ends = tiles[:, 2] + tiles[:, 3]
    assert (np.diff(ends) <= 0).all()
    assert result_tokens(rows).tolist() == sorted(covered)


def test_slots_follow_the_block_tables():
    tables = [np.array([5, 2, 9]), np.array([7, 0])]
    ids, starts = flat_tables(tables, np.array([9, 4]), 4)
    assert ids.tolist() == [5, 2, 9, 7]
    rows = Rows(np.array([3, 1]), np.array([9, 4]), starts, np.array([0, 3]))
    assert written_slots(rows, ids, 4).tolist() == [10, 11, 36, 31]


def test_few_long_rows_are_split_and_many_are_not():
    assert split_keys(_decodes([32768]), 8, _KEYS, 264, 64) > 16
    assert split_keys(_decodes([200]), 8, _KEYS, 264, 64) == 1
    assert split_keys(_decodes([2000] * 256), 8, _KEYS, 264, 64) == 1
    assert split_keys(_decodes([2000] * 255 + [100_000]), 8, _KEYS, 264, 64) > 8
    assert split_keys(_decodes([100_000]), 8, _KEYS, 264, 5) == 5


def test_splits_are_of_even_length():
    lengths = [random.randint(1, 30_000) for _ in range(random.randint(1, 40))]
    tiles = _decodes(lengths)
    splits = split_keys(tiles, 8, _KEYS, 264, 64)
    share = int(tiles[0, 5])
    assert (tiles[:, 5] == share).all()
    assert -(-max(lengths) // _KEYS) <= splits * share
    assert splits == 1 or share * _KEYS >= 256


def test_a_graph_has_as_many_splits_as_are_of_use():
    assert max_decode_splits(256, 32768, 8, 264) == 1
    assert max_decode_splits(1, 32768, 8, 264) == 64
    assert max_decode_splits(1, 256, 8, 264) == 1
    assert 1 < max_decode_splits(16, 32768, 8, 264) < 64


@pytest.mark.parametrize("group", [1, 3, 16, 71, 200])
@pytest.mark.parametrize("head_dim", [8, 64, 80, 128, 256])
@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn])
def test_tiles_take_whole_queries_of_all_heads(group, head_dim, kv_dtype):
    for phase in ("prefill", "decode"):
        for is_large in (False, True):
            sizes = tile_sizes(phase, group, head_dim, kv_dtype, is_large=is_large)
            parts = -(-group // sizes.heads)
            assert parts * sizes.heads < group + parts
            assert sizes.queries >= 1
            assert {sizes.rows, sizes.keys} <= {16, 32, 64, 128}
