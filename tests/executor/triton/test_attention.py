"""The attention kernel in a step's plan, interpreted, against attention written out in float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from executor.attention.triton.attention import Work, attend
from executor.attention.triton.block_cache import BlockCache
from executor.attention.triton.heads import Gpu, Heads
from executor.attention.triton.merge import merge
from executor.attention.triton.tiles import Rows, query_tiles, split_keys
from executor.errors import SettingsError
from tests.executor.triton.attention_cases import CPU, PLAIN, Case, Step, attention, score_forms

_MIXED = ((1, 33), (20, 20), (1, 2), (7, 45), (1, 90))
_SMALL = ((1, 40), (9, 30))


def _check(case: Case, rng: np.random.Generator) -> None:
    step = Step(case, rng)
    plan = step.backend.plan(step.layout, CPU)
    plan.write(step.cache, step.keys, step.values)
    step.close(plan.attend(step.cache, step.queries, case.params))


@pytest.mark.parametrize("block_size", [8, 16, 32, 64, 128])
def test_every_size_of_blocks(block_size, rng):
    _check(Case(_MIXED, block_size=block_size, group=1), rng)


@pytest.mark.parametrize("form", range(4))
def test_what_scores_go_through(form, rng):
    _check(Case(_MIXED, params=score_forms(4)[form]), rng)


@pytest.mark.parametrize(("kv_heads", "group"), [(2, 1), (1, 3), (1, 8), (1, 20)])
def test_heads_that_share_keys(kv_heads, group, rng):
    _check(Case(_SMALL, kv_heads=kv_heads, group=group, params=score_forms(kv_heads * group)[2]), rng)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_more_heads_than_a_tile_has(dtype, rng):
    _check(Case(((1, 20), (3, 19)), kv_heads=1, group=71, dtype=dtype), rng)


@pytest.mark.parametrize("head_dim", [8, 64, 80, 128, 256])
def test_every_size_of_heads(head_dim, rng):
    _check(Case(_SMALL, head_dim=head_dim, kv_heads=1), rng)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype, rng):
    _check(Case(_MIXED, dtype=dtype, kv_heads=1), rng)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_keys_and_values_of_8_bits(dtype, rng):
    _check(Case(_SMALL, dtype=dtype, kv_dtype=torch.float8_e4m3fn), rng)


@pytest.mark.parametrize("window", [0, 500])
def test_long_contexts_are_split(window, rng):
    params = score_forms(2)[0] if window == 0 else type(PLAIN)(0.25, window=window)
    _check(Case(((1, 1400), (1, 700), (3, 600), (1, 5)), kv_heads=1, block_size=64, params=params), rng)


def test_queries_and_keys_are_views_of_one_matrix(rng):
    """As a fused projection gives them."""
    step = Step(Case(_SMALL, group=3), rng)
    heads = torch.cat([step.queries, step.keys, step.values], dim=1)
    queries, keys, values = heads.split((6, 2, 2), dim=1)
    plan = step.backend.plan(step.layout, CPU)
    plan.write(step.cache, keys, values)
    step.close(plan.attend(step.cache, queries, PLAIN))


def test_blocks_far_apart(rng, tmp_path):
    """A block's offset may exceed 32 bits."""
    step = Step(Case(((1, 30), (2, 9)), kv_heads=1, dtype=torch.float16), rng)
    plan = step.backend.plan(step.layout, CPU)
    plan.write(step.cache, step.keys, step.values)
    stride = (1 << 31) // (len(step.cache.keys) - 1) + 16 & -16
    far = [
        _far_apart(blocks, stride, tmp_path / name)
        for name, blocks in (("k", step.cache.keys), ("v", step.cache.values))
    ]
    assert far[0].stride(0) * (len(far[0]) - 1) >= 1 << 31
    step.close(plan.attend(BlockCache(*far), step.queries, PLAIN))


def _far_apart(blocks, stride, path):
    """The same blocks in a file that is empty between them."""
    size = stride * (len(blocks) - 1) + blocks[0].numel()
    memory = torch.from_numpy(np.memmap(path, dtype=np.float16, mode="w+", shape=(size,)))
    far = memory.as_strided(blocks.shape, (stride, *blocks.stride()[1:]))
    for block, copy in zip(blocks, far, strict=True):
        copy.copy_(block)
    return far


def test_the_rest_of_a_context_merges_with_what_was_attended_elsewhere(rng):
    """Rows that attend from some key on, and another part's results for the keys before."""
    contexts, first_keys = (40, 700, 16, 5), np.array([16, 32, 16, 0])
    step = Step(Case(tuple((1, length) for length in contexts), kv_heads=1), rng)
    plan = step.backend.plan(step.layout, CPU)
    plan.write(step.cache, step.keys, step.values)

    lengths = np.array(contexts)
    counts = -(-lengths // 16)
    tables = np.concatenate([t[:n] for t, n in zip(step.layout.block_tables, counts, strict=True)]).astype(np.int32)
    rows = Rows(np.ones(4, int), lengths, np.cumsum(counts) - counts, np.arange(4))
    sizes = Heads(2, 1, 32, torch.float32, Gpu((8, 0), 4)).sizes("decode")
    tiles = query_tiles(rows, 1, first_keys)
    num_splits = split_keys(tiles, 1, sizes.keys, 64, 5)
    assert num_splits > 1
    parts = torch.full((num_splits + 1, 4, 2, 32), torch.nan)
    log_sums = torch.full((num_splits + 1, 4, 2), torch.nan)
    work = Work(sizes, torch.from_numpy(tiles), torch.from_numpy(tables))
    attend(work, step.cache, step.queries, PLAIN, torch.zeros(1), parts[1:], log_sums[1:])
    assert log_sums[1:, 2].eq(-torch.inf).all()
    assert log_sums[1:, [0, 1, 3]].isfinite().any(0).all()

    for row, first in enumerate(first_keys.tolist()):
        keys, values = step.contexts[row][:, :first]
        log_sums[0, row] = torch.logsumexp(step.queries[row] @ keys[:, 0].T * 0.25, 1) / np.log(2)
        if first:
            parts[0, row] = attention(step.queries[row], keys, values, first - 1, PLAIN)
    result = torch.full_like(step.queries, torch.nan)
    merge(parts, log_sums, torch.arange(4, dtype=torch.int32), result)
    step.close(result)


def test_parts_that_are_all_empty_merge_to_nothing():
    parts, log_sums = torch.full((3, 2, 2, 8), torch.nan), torch.full((3, 2, 2), -torch.inf)
    parts[1, 0], log_sums[1, 0] = 7.0, -300.0
    result = torch.full((5, 2, 8), torch.nan, dtype=torch.float16)
    merge(parts, log_sums, torch.tensor([4, 1], dtype=torch.int32), result)
    assert result[4].eq(7).all()
    assert result[1].eq(0).all()
    assert result[[0, 2, 3]].isnan().all()


@pytest.mark.parametrize(
    ("case", "dtype", "message"),
    [
        (Case(()), torch.int8, "are stored in .*, not in torch.int8"),
        (Case((), block_size=24), torch.float16, "block_size must be one of 8, 16, 32, 64, 128, not 24"),
        (Case((), block_size=256), torch.float16, "not 256"),
        (Case((), head_dim=264), torch.float16, "heads must be a multiple of 8 wide, up to 256, not 264"),
        (Case((), head_dim=36), torch.float16, "not 36"),
    ],
)
def test_what_cannot_be_stored_is_refused(case, dtype, message, rng):
    backend = Step(Case(()), rng).backend
    with pytest.raises(SettingsError, match=f"attention_backend triton: .*{message}"):
        backend.block_layout(case.model, case.block_size, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("block_size", [8, 16, 32, 64, 128])
@pytest.mark.parametrize(("head_dim", "group"), list(itertools.product((32, 80, 128), (1, 3, 4))))
def test_everything_together(block_size, head_dim, group, rng):
    rows = tuple(
        (int(count), int(count + past))
        for count, past in zip(rng.choice([1, 1, 4, 30], 4), rng.choice([0, 1, 20, 150, 300], 4), strict=True)
    )
    params = (PLAIN, *score_forms(group))[rng.integers(5)]
    dtype = (torch.float16, torch.float32)[rng.integers(2)]
    kv_dtype = (dtype, torch.float8_e4m3fn)[rng.integers(2)]
    case = Case(rows, 1, group, head_dim, block_size, dtype, kv_dtype, params)
    print(case)
    _check(case, rng)
