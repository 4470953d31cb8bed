"""Attention of many rows over what their block tables begin with, against the same written out in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from executor.attention import AttentionParams
from executor.attention.triton.block_cache import BlockCache
from executor.attention.triton.merge import merge
from executor.attention.triton.prefix_groups import PrefixGroup
from executor.attention.triton.prefix_work import PrefixWork, WorkSize
from executor.attention.triton.shared_prefix import attend_prefixes
from executor.attention.triton.tile_sizes import shared_prefix_sizes
from executor.attention.triton.tiles import Rows

TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


class Case:
    """Rows in groups of random tables, whose unread memory holds NaN.

    Args:
        groups: number of rows and of shared blocks of each group.
        alone: rows in no group.
    """

    def __init__(
        self, rng, groups, *, alone=1, block_size=16, kv_heads=1, group=2, head_dim=64, dtype=torch.float32,
        wanted_items=4, spread=40,
    ):  # fmt: skip
        counts = [count for count, _ in groups]
        num_rows = sum(counts) + alone
        self.block_size, self.kv_heads, self.group = block_size, kv_heads, group
        places = rng.permutation(num_rows)
        self.groups, shared_blocks = [], np.zeros(num_rows, dtype=np.int64)
        for (count, prefix_blocks), end in zip(groups, np.cumsum(counts), strict=True):
            members = tuple(places[end - count : end].tolist())
            self.groups.append(PrefixGroup(members, prefix_blocks))
            shared_blocks[list(members)] = prefix_blocks
        lengths = shared_blocks * block_size + rng.integers(1, spread, num_rows)
        num_blocks = int((lengths // block_size + 1).sum())
        blocks = iter(rng.permutation(num_blocks))
        tables = [[next(blocks) for _ in range(-(-length // block_size))] for length in lengths]
        for prefix in self.groups:
            for row in prefix.rows:
                tables[row][: prefix.num_blocks] = tables[prefix.rows[0]][: prefix.num_blocks]
        self.tables = [np.array(table) for table in tables]
        self.block_ids = torch.tensor(np.concatenate(self.tables), dtype=torch.int32)

        ends = np.cumsum([len(table) for table in self.tables])
        starts = ends - [len(table) for table in self.tables]
        # Other tokens of the step lie between the rows' ones.
        tokens = np.sort(rng.permutation(2 * num_rows)[:num_rows])
        self.rows = Rows(np.ones_like(lengths), lengths, starts, tokens)
        self.work = PrefixWork.of(self.groups, self.rows, block_size, WorkSize.of(num_rows, wanted_items))
        # There may not be room for all of them.
        self.groups = [prefix for prefix in self.groups if self.work.first_keys[prefix.rows[0]]]

        memory = torch.full((num_blocks, 2, kv_heads, block_size, head_dim), math.nan, dtype=dtype)
        self.cache = BlockCache(memory[:, 0], memory[:, 1])
        for prefix in self.groups:
            for block in self.tables[prefix.rows[0]][: prefix.num_blocks]:
                memory[block] = torch.randn(memory[block].shape).to(dtype)
        self.queries = torch.randn(2 * num_rows, kv_heads * group, head_dim).to(dtype)

    def attend(self, params):
        """Parts' results and logarithms of sums, NaN where none was written."""
        shape = (self.work.num_parts + 1, len(self.rows.num_tokens), self.kv_heads * self.group, self.queries.shape[2])
        parts, log_sums = torch.full(shape, math.nan), torch.full(shape[:-1], math.nan)
        slopes = torch.tensor(params.alibi_slopes or (0.0,))
        items = torch.from_numpy(self.work.items)
        attend_prefixes(items, self.block_ids, self.cache, self.queries, params, slopes, parts, log_sums)
        return parts, log_sums

    def expected(self, params):
        """Each row of a group over all of its prefix, [rows, heads, head_dim], and log2 of the sums, [rows, heads]."""
        heads = self.kv_heads * self.group
        result = torch.zeros(len(self.rows.num_tokens), heads, self.queries.shape[2], dtype=torch.float64)
        log_sums = torch.full(result.shape[:-1], -math.inf, dtype=torch.float64)
        for prefix in self.groups:
            blocks = self.tables[prefix.rows[0]][: prefix.num_blocks]
            keys, values = (
                memory[blocks].double().transpose(0, 1).flatten(1, 2) for memory in (self.cache.keys, self.cache.values)
            )
            for row in prefix.rows:
                distance = torch.arange(keys.shape[1]) - int(self.rows.context_lengths[row] - 1)
                for head in range(heads):
                    query = self.queries[self.rows.token_starts[row], head].double()
                    scores = keys[head // self.group] @ query * params.scale
                    if params.soft_cap:
                        scores = params.soft_cap * torch.tanh(scores / params.soft_cap)
                    if params.alibi_slopes:
                        scores = scores + params.alibi_slopes[head] * distance
                    if params.window:
                        scores = torch.where(distance > -params.window, scores, -math.inf)
                    log_sums[row, head] = torch.logsumexp(scores, 0) / math.log(2)
                    if log_sums[row, head] > -math.inf:
                        result[row, head] = torch.softmax(scores, 0) @ values[head // self.group]
        return result, log_sums

    def check(self, params=None):
        params = params or AttentionParams(self.queries.shape[2] ** -0.5)
        parts, log_sums = self.attend(params)
        expected, expected_log_sums = self.expected(params)
        members = sorted(row for prefix in self.groups for row in prefix.rows)
        others = sorted(set(range(len(log_sums[0]))) - set(members))
        assert parts[:, others].isnan().all(), "a row outside any group was written"
        assert parts[-1].isnan().all(), "there is one part more than was said"

        tolerance = TOLERANCE[self.queries.dtype]
        log_sums = log_sums.nan_to_num(-math.inf, neginf=-math.inf)
        total = torch.logsumexp(log_sums * math.log(2), 0) / math.log(2)
        torch.testing.assert_close(
            total[members].double(), expected_log_sums[members], atol=tolerance * 10, rtol=tolerance
        )
        output = torch.zeros(len(parts[0]), *parts.shape[2:])
        tokens = torch.arange(len(output), dtype=torch.int32)
        merge(parts, log_sums, tokens, output)
        torch.testing.assert_close(output[members].double(), expected[members], atol=tolerance, rtol=tolerance)


def test_one_group(rng):
    Case(rng, [(5, 3)]).check()


def test_several_groups_and_rows_outside_them(rng):
    Case(rng, [(2, 3), (7, 1), (3, 2)], alone=3, kv_heads=2, group=3, dtype=torch.float16).check()


@pytest.mark.parametrize("block_size", [8, 16, 64])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_block_and_head_sizes(rng, block_size, head_dim):
    Case(rng, [(3, 2)], block_size=block_size, head_dim=head_dim).check()


@pytest.mark.parametrize("num_blocks", [7, 8, 9, 16, 17])
def test_prefixes_that_end_around_a_tile_of_keys(rng, num_blocks):
    Case(rng, [(3, num_blocks)], block_size=8, head_dim=32).check()


@pytest.mark.parametrize("group", [1, 3, 8, 11])
def test_group_sizes(rng, group):
    """Eleven heads take two tiles."""
    Case(rng, [(4, 2)], group=group, kv_heads=2, head_dim=32).check()


@pytest.mark.parametrize(("group", "num_rows"), [(1, 33), (4, 17), (8, 16)])
def test_more_rows_than_a_tile_has_room_for(rng, group, num_rows):
    Case(rng, [(num_rows, 2)], group=group, head_dim=32, wanted_items=2).check()


def test_parts_of_a_prefix(rng):
    """One ends at a part's border, one begins a part with a single block."""
    case = Case(rng, [(3, 32), (2, 33)], head_dim=32, wanted_items=8)
    assert case.work.num_parts == 3
    case.check()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(rng, dtype):
    Case(rng, [(5, 5)], dtype=dtype).check()


def test_a_head_size_that_is_no_power_of_two(rng):
    Case(rng, [(3, 5)], head_dim=80).check()


@pytest.mark.parametrize(
    "params",
    [
        AttentionParams(0.3, soft_cap=2.0),
        AttentionParams(0.1, alibi_slopes=(0.5, 0.03, 0.25, 0.0)),
        AttentionParams(0.1, window=70),
        AttentionParams(0.2, soft_cap=3.0, window=40, alibi_slopes=(0.5, 0.03, 0.25, 0.0)),
    ],
    ids=["soft cap", "alibi", "window", "all"],
)
def test_what_scores_go_through(rng, params):
    """Each row is at another distance from the prefix; windows begin in it, before it, or after it."""
    Case(rng, [(6, 5), (2, 2)], kv_heads=2, spread=80).check(params)


def test_windows_that_begin_after_the_prefix_have_none_of_it(rng):
    case = Case(rng, [(4, 20)], spread=2, head_dim=32)
    case.check(AttentionParams(0.2, window=1))
    _, log_sums = case.attend(AttentionParams(0.2, window=1))
    assert (log_sums[:-1, list(case.groups[0].rows)] == -math.inf).all()


def test_steps_without_groups_write_nothing(rng):
    Case(rng, [], alone=3).check()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head_dim", "block_size"), [(32, 8), (64, 16), (64, 128), (96, 32), (128, 16), (128, 64), (256, 8), (256, 128)]
)
def test_any_batch(rng, head_dim, block_size):
    group = int(rng.integers(1, 10))
    dtypes = [dtype for dtype in (torch.float32, torch.float16) if shared_prefix_sizes(group, head_dim, dtype)]
    params = AttentionParams(
        head_dim**-0.5,
        soft_cap=float(rng.choice([0.0, 2.0])),
        window=int(rng.choice([0, rng.integers(1, 300)])),
        alibi_slopes=tuple(rng.random(group).tolist()) if rng.random() < 0.5 else (),
    )
    groups = [
        (int(rng.integers(2, 20)), int(rng.integers(1, 400 // block_size + 2))) for _ in range(rng.integers(1, 3))
    ]
    Case(
        rng, groups, alone=int(rng.integers(0, 3)), block_size=block_size, group=group, head_dim=head_dim,
        dtype=dtypes[rng.integers(len(dtypes))], wanted_items=int(rng.integers(1, 8)),
        spread=int(rng.integers(2, 200)),
    ).check(params)  # fmt: skip
