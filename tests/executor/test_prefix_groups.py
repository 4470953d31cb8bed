"""Which rows share their first blocks, and what becomes of them: tables of fixed size that a kernel works through."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from executor.attention.triton.prefix_groups import PrefixGroup, prefix_groups
from executor.attention.triton.prefix_work import (
    ITEM_FIELDS,
    TILE_ROWS,
    PrefixWork,
    WorkSize,
    saved_tokens,
    worthwhile_groups,
)
from executor.attention.triton.tiles import Rows


@pytest.fixture
def rng():
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    return np.random.default_rng(seed)


def _saved_blocks(rows, blocks):
    return (rows - 1) * blocks


def _tables(rng, shape):
    """No id twice."""
    return rng.permutation(shape[0] * shape[1]).reshape(shape)


def _groups(tables, full_blocks, gain):
    """Each row's table has as many blocks as it has full ones, or more."""
    lengths = [min(int(full) + row % 2, tables.shape[1]) for row, full in enumerate(full_blocks)]
    block_ids = np.concatenate([table[:length] for table, length in zip(tables, lengths, strict=True)])
    return prefix_groups(block_ids, np.cumsum(lengths) - lengths, full_blocks, gain)


def _found(tables, full_blocks, gain=_saved_blocks):
    groups = _groups(np.asarray(tables), np.asarray(full_blocks), gain)
    return {(tuple(sorted(group.rows)), group.num_blocks) for group in groups}


def test_nothing_is_shared(rng):
    assert _found(_tables(rng, (9, 5)), [5] * 9) == set()
    assert _found(_tables(rng, (1, 5)), [5]) == set()
    assert _found(np.zeros((3, 0), dtype=np.int64), [0] * 3) == set()


def test_two_system_prompts_and_rows_without(rng):
    tables = _tables(rng, (7, 6))
    tables[[0, 3, 6], :4] = tables[0, :4]
    tables[[5, 2], :2] = tables[5, :2]
    assert _found(tables, [6] * 7) == {((0, 3, 6), 4), ((2, 5), 2)}


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_identical_tables_share_all_full_blocks(rng, dtype):
    tables = np.repeat(_tables(rng, (1, 6)), 4, axis=0).astype(dtype)
    assert _found(tables, [5] * 4) == {((0, 1, 2, 3), 5)}


def test_only_full_blocks_before_the_new_tokens_count(rng):
    tables = np.repeat(_tables(rng, (1, 6)), 4, axis=0)
    assert _found(tables, [5, 3, 0, 5]) in ({((0, 1, 3), 3)}, {((0, 3), 5)})  # either saves six or five
    assert _found(tables, [5, 3, 0, 5], lambda rows, blocks: _saved_blocks(rows, blocks) ** 2) == {((0, 1, 3), 3)}
    assert _found(tables, [5, 1, 0, 5]) == {((0, 3), 5)}
    assert _found(tables, [0] * 4) == set()


def test_a_copied_block_ends_what_is_shared(rng):
    """Copy-on-write gave one row another last block."""
    tables = np.repeat(_tables(rng, (1, 4)), 3, axis=0)
    tables[1, 3] = 1000
    assert _found(tables, [4] * 3, lambda rows, blocks: rows * 100 + blocks) == {((0, 1, 2), 3)}


def test_the_same_block_at_another_place_is_not_shared():
    assert _found([[1, 2, 3], [4, 2, 3], [2, 1, 3]], [3] * 3) == set()
    assert _found([[1, 2, 3], [1, 4, 3]], [3] * 2) == {((0, 1), 1)}


def test_a_template_before_different_prompts(rng):
    """All share two blocks, four share ten and three share eight: these save more."""
    tables = _tables(rng, (8, 12))
    tables[:4, :10] = tables[0, :10]
    tables[4:7, :8] = tables[4, :8]
    tables[:, :2] = tables[0, :2]
    order = rng.permutation(8)
    place = np.argsort(order)
    expected = {(tuple(sorted(place[:4])), 10), (tuple(sorted(place[4:7])), 8)}
    assert _found(tables[order], [12] * 8) == expected
    everyone = {(tuple(range(8)), 2)}
    assert _found(tables[order], [12] * 8, lambda rows, blocks: rows**4 + blocks) == everyone


def _is_whole(tables, full_blocks, rows):
    """Whether no other row begins with what these share."""
    num_blocks = _shared(tables, full_blocks, rows)
    others = np.setdiff1d(np.arange(len(tables)), rows)
    alike = (tables[others, :num_blocks] == tables[rows[0], :num_blocks]).all(axis=1)
    return not (alike & (full_blocks[others] >= num_blocks)).any()


def test_no_other_choice_of_groups_saves_more(rng):
    """Against every way to part few rows into groups of all that begin alike."""
    for _ in range(20):
        num_rows = int(rng.integers(2, 6))
        tables = rng.integers(0, 2, (num_rows, 5))
        full_blocks = rng.integers(0, 6, num_rows)
        tables[np.arange(5) >= full_blocks[:, None]] = 7
        cost = int(rng.integers(0, 4))

        def gain(rows, blocks, cost=cost):
            return (rows - 1) * blocks - cost

        best = 0
        for labels in itertools.product(range(num_rows), repeat=num_rows):
            parts = [np.flatnonzero(np.array(labels) == label) for label in set(labels)]
            whole = [part for part in parts if _is_whole(tables, full_blocks, part)]
            best = max(best, sum(max(0, gain(len(part), _shared(tables, full_blocks, part))) for part in whole))
        groups = _groups(tables, full_blocks, gain)
        assert sum(gain(len(group.rows), group.num_blocks) for group in groups) == best
        for group in groups:
            assert group.num_blocks <= _shared(tables, full_blocks, group.rows)
            assert gain(len(group.rows), group.num_blocks) > 0


def _shared(tables, full_blocks, rows):
    rows = list(rows)
    limit = int(np.min(full_blocks[rows]))
    equal = (tables[rows, :limit] == tables[rows[0], :limit]).all(axis=0)
    return limit if equal.all() else int(equal.argmin())


def test_large_groups_are_whole(rng):
    tables = _tables(rng, (256, 40))
    prompts = rng.integers(0, 3, 256)
    lengths = rng.integers(10, 30, 3)
    for prompt, length in enumerate(lengths):
        tables[prompts == prompt, :length] = tables[np.flatnonzero(prompts == prompt)[0], :length]
    expected = {(tuple(np.flatnonzero(prompts == prompt)), length) for prompt, length in enumerate(lengths)}
    assert _found(tables, [40] * 256) == expected


def test_more_rows_and_more_tokens_save_more():
    assert saved_tokens(2, 16) < 0  # the partial results weigh more than 16 tokens
    assert saved_tokens(8, 4096) > saved_tokens(8, 2048) > saved_tokens(4, 2048) > 0
    assert saved_tokens(1, 10_000) < 0


def _rows(context_lengths, table_starts=None, token_starts=None):
    lengths = np.asarray(context_lengths, dtype=np.int64)
    place = np.arange(len(lengths))
    return Rows(
        np.ones_like(lengths),
        lengths,
        place if table_starts is None else table_starts,
        place if token_starts is None else token_starts,
    )


@pytest.mark.parametrize(
    ("num_rows", "num_blocks", "worth_it"),
    [(2, 8, False), (64, 4, False), (64, 32, True), (8, 64, True), (2, 512, True)],
)
def test_a_launch_is_worth_much_sharing_only(rng, num_rows, num_blocks, worth_it):
    tables = np.repeat(_tables(rng, (1, num_blocks + 1)), num_rows, axis=0)
    tables[:, -1] = 10_000 + np.arange(num_rows)
    rows = _rows([num_blocks * 16 + 1] * num_rows, np.arange(num_rows) * (num_blocks + 1))
    groups = worthwhile_groups(rows, tables.ravel().astype(np.int32), 16)
    assert [(len(group.rows), group.num_blocks) for group in groups] == [(num_rows, num_blocks)] * worth_it


def test_many_small_groups_are_worth_a_launch_together(rng):
    for pairs, worth_it in ((4, False), (32, True)):
        tables = np.repeat(_tables(rng, (pairs, 33)), 2, axis=0)
        rows = _rows([32 * 16 + 5] * 2 * pairs, np.arange(2 * pairs) * 33)
        groups = worthwhile_groups(rows, tables.ravel().astype(np.int32), 16)
        assert len(groups) == pairs * worth_it


def test_the_block_that_is_written_is_not_shared(rng):
    """Nor is there anything to share with rows that are empty."""
    tables = np.repeat(_tables(rng, (1, 64)), 16, axis=0)
    rows = _rows([1024] * 14 + [0] * 2, np.arange(16) * 64)
    (group,) = worthwhile_groups(rows, tables.ravel().astype(np.int32), 16)
    assert (sorted(group.rows), group.num_blocks) == (list(range(14)), 63)


def _read(work):
    """{(row, part): (first, end, table start, token, position)} of the items in use."""
    read = {}
    for first, end, table, part, *fields in work.items.tolist():
        if first >= end:
            continue
        for token, position, row in np.reshape(fields, (3, TILE_ROWS)).T.tolist():
            if token >= 0:
                assert (row, part) not in read
                read[row, part] = (first, end, table, token, position)
    return read


@pytest.mark.parametrize("block_size", [8, 16, 128])
def test_each_row_reads_all_it_shares_in_parts(rng, block_size):
    for _ in range(10):
        num_rows = int(rng.integers(2, 200))
        size = WorkSize.of(num_rows, wanted_items=int(rng.integers(1, 40)))
        left, groups = rng.permutation(num_rows).tolist(), []
        while len(left) > 1 and len(groups) < 3:
            count = int(rng.integers(2, len(left) + 1))
            groups.append(PrefixGroup(tuple(left[:count]), int(rng.integers(1, 300))))
            left = left[count:]
        rows = _rows(rng.integers(40_000, 50_000, num_rows), rng.permutation(num_rows), rng.permutation(num_rows) + 7)
        work = PrefixWork.of(groups, rows, block_size, size)

        read = _read(work)
        for group in groups:
            if not work.first_keys[group.rows[0]]:
                continue  # there was no room
            for row in group.rows:
                assert work.first_keys[row] == group.num_blocks * block_size
                end = 0
                while end < work.first_keys[row]:
                    part = next(part for part in range(work.num_parts) if read.get((row, part), (-1,))[0] == end)
                    first, end, table, token, position = read.pop((row, part))
                    assert first < end
                    assert table in rows.table_starts[list(group.rows)]
                    assert token == rows.token_starts[row]
                    assert position == rows.context_lengths[row] - 1
                assert end == work.first_keys[row]
        assert not read
        assert not work.first_keys[left].any()
        assert work.num_parts <= size.max_parts


def test_long_prefixes_are_cut_into_as_many_parts_as_there_is_room_for():
    size = WorkSize.of(32, wanted_items=24)
    work = PrefixWork.of([PrefixGroup(tuple(range(32)), 1000)], _rows([20_000] * 32), 16, size)
    assert size.max_items // 4 < work.num_parts <= size.max_items // 2
    work = PrefixWork.of([PrefixGroup(tuple(range(32)), 16)], _rows([20_000] * 32), 16, size)
    assert work.num_parts == 1  # short ones aren't


def test_tables_have_the_same_shape_whatever_is_in_them():
    size = WorkSize.of(100, wanted_items=12)
    for groups in ([], [PrefixGroup((0, 1), 100)], [PrefixGroup(tuple(range(100)), 1000)]):
        work = PrefixWork.of(groups, _rows([20_000] * 100), 16, size)
        assert work.items.shape == (12, ITEM_FIELDS)
        assert work.items.dtype == np.int32
        assert work.first_keys.shape == (100,)
        assert bool(_read(work)) == bool(work.num_parts) == bool(groups)


def test_without_room_for_all_groups_those_that_save_the_least_go_without():
    groups = [PrefixGroup((2 * i, 2 * i + 1), 10 + i) for i in range(20)]
    size = WorkSize.of(40, wanted_items=5)
    work = PrefixWork.of(groups, _rows([2000] * 40), 64, size)
    assert set(np.flatnonzero(work.first_keys)) == set(range(30, 40))
