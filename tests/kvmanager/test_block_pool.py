"""Allocation order, reference counts, and what the prefix cache keeps."""

from __future__ import annotations

import pytest

from kvmanager.block import Block, BlockList
from kvmanager.block_pool import BlockPool, OutOfBlocks
from kvmanager.prefix_cache import ROOT, PrefixCache, block_identity


def pool_with_cache(num_blocks: int) -> tuple[BlockPool, PrefixCache]:
    cache = PrefixCache()
    return BlockPool(num_blocks, cache.evict), cache


def test_a_block_list_gives_out_in_order_and_lets_go_in_the_middle():
    blocks = [Block(i) for i in range(4)]
    ring = BlockList()
    for block in blocks:
        ring.append(block)
    ring.remove(blocks[1])
    assert [block.block_id for block in ring] == [0, 2, 3]
    assert [ring.pop_oldest().block_id for _ in range(3)] == [0, 2, 3]
    assert not ring


def test_an_empty_pool_says_so():
    pool, _ = pool_with_cache(1)
    pool.allocate()
    with pytest.raises(OutOfBlocks, match="1 blocks"):
        pool.allocate()


def test_a_double_free_is_caught():
    pool, _ = pool_with_cache(1)
    block = pool.allocate()
    pool.release([block])
    with pytest.raises(AssertionError, match="double free"):
        pool.release([block])


def test_empty_blocks_go_before_cached_ones_and_tails_before_heads():
    pool, cache = pool_with_cache(4)
    chain = [pool.allocate() for _ in range(3)]
    identity = ROOT
    for index, block in enumerate(chain):
        identity = block_identity(identity, [index], b"")
        cache.register(block, identity, [index])
    pool.release(chain)
    pool.check_integrity()
    assert (pool.num_free, pool.num_cached) == (1, 3)
    order = [pool.allocate() for _ in range(4)]
    assert [block.block_id for block in order] == [3, 2, 1, 0]
    assert cache.num_evicted == 3
    assert len(cache) == 0


def test_a_hit_takes_a_block_out_of_the_way_of_eviction():
    pool, cache = pool_with_cache(2)
    blocks = [pool.allocate(), pool.allocate()]
    for block in blocks:
        cache.register(block, block_identity(ROOT, [block.block_id], b""), [block.block_id])
    pool.release(blocks)
    hit = cache.match([block_identity(ROOT, [0], b"")], [0], 1)
    pool.retain(hit[0])
    assert pool.allocate() is blocks[1]
    assert pool.num_available == 0
    pool.check_integrity()


def test_a_match_ends_at_the_first_block_that_is_not_there():
    pool, cache = pool_with_cache(3)
    tokens = [1, 2, 3, 4, 5, 6]
    first = block_identity(ROOT, tokens[:2], b"salt")
    second = block_identity(first, tokens[2:4], b"salt")
    third = block_identity(second, tokens[4:], b"salt")
    for identity, start in ((first, 0), (third, 4)):
        cache.register(pool.allocate(), identity, tokens[start : start + 2])
    assert [b.block_id for b in cache.match([first, second, third], tokens, 2)] == [0]


def test_a_match_is_verified_against_the_tokens():
    pool, cache = pool_with_cache(1)
    identity = block_identity(ROOT, [1, 2], b"")
    cache.register(pool.allocate(), identity, [1, 2])
    assert cache.match([identity], [1, 3], 2) == []


@pytest.mark.parametrize(
    "other",
    [
        (b"x", [1, 2], b"salt", b""),
        (ROOT, [1, 3], b"salt", b""),
        (ROOT, [1, 2], b"tlas", b""),
        (ROOT, [1, 2], b"salt", b"lora"),
        (ROOT, [1, 2], b"sal", b"t"),  # framing: not the concatenation counts
        (ROOT, [1, 2], b"", b"salt"),
    ],
)
def test_everything_that_keys_and_values_depend_on_is_in_the_identity(other):
    assert block_identity(ROOT, [1, 2], b"salt") != block_identity(*other)
