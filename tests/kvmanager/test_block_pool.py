"""Allocation order, reference counts, and what the prefix cache keeps."""

from __future__ import annotations

from array import array

import pytest

from kvmanager.accounts import Account, Quota
from kvmanager.block import Block, BlockList
from kvmanager.block_pool import OutOfBlocks
from kvmanager.content import ROOT, Content, block_identity
from kvmanager.kv_events import KVEventLog, Tier
from kvmanager.prefix_cache import MAX_SIBLINGS
from kvmanager.spec import Scope
from kvmanager.tier import MemoryTier
from kvmanager.untold import UntoldContents


def pack(token_ids):
    return array("i", token_ids).tobytes()


def tier_of(num_blocks: int, **quotas: Quota) -> MemoryTier:
    return MemoryTier("executor-0", Tier.DEVICE, num_blocks, quotas, KVEventLog(), UntoldContents())


def account(tier: MemoryTier, owner: str = "acme") -> Account:
    return tier.pool.accounts[owner]


def chain(*blocks: list[int], salt: bytes = b"", owner: str = "acme") -> list[Content]:
    """What consecutive blocks with these tokens hold."""
    contents: list[Content] = []
    parent, likeness = ROOT, 0
    for tokens in map(pack, blocks):
        likeness = hash((likeness, tokens))
        contents.append(Content(block_identity(parent, tokens, salt), parent, tokens, Scope(salt, owner), likeness))
        parent = contents[-1].identity
    return contents


def cached_chain(tier: MemoryTier, contents: list[Content], owner: str = "acme") -> list[Block]:
    """Blocks with these contents that nobody references."""
    blocks = [tier.pool.allocate(account(tier, owner)) for _ in contents]
    for block, content in zip(blocks, contents, strict=True):
        assert tier.register(block, content, written_step=1)
    tier.pool.release(blocks)
    return blocks


# Lists and counts


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
    tier = tier_of(1)
    tier.pool.allocate(account(tier))
    with pytest.raises(OutOfBlocks, match="1 blocks"):
        tier.pool.allocate(account(tier))


def test_a_double_free_is_caught():
    tier = tier_of(1)
    block = tier.pool.allocate(account(tier))
    tier.pool.release([block])
    with pytest.raises(AssertionError, match="double free"):
        tier.pool.release([block])


def test_a_free_block_cannot_be_shared():
    tier = tier_of(1)
    block = tier.pool.allocate(account(tier))
    tier.pool.release([block])
    with pytest.raises(AssertionError, match="free"):
        tier.pool.retain(block)


def test_a_block_is_charged_once_however_often_it_is_referenced():
    tier = tier_of(2)
    block = tier.pool.allocate(account(tier))
    tier.pool.retain(block)
    tier.pool.retain(block)
    assert account(tier).num_charged == 1
    tier.pool.release([block, block])
    assert account(tier).num_charged == 1
    tier.pool.release([block])
    assert account(tier).num_charged == 0
    tier.check_integrity()


# Eviction


def test_empty_blocks_go_before_cached_ones_and_tails_before_heads():
    tier = tier_of(4)
    cached_chain(tier, chain([0], [1], [2]))
    tier.check_integrity()
    assert (tier.pool.num_free, tier.pool.num_cached) == (1, 3)
    order = [tier.pool.allocate(account(tier)) for _ in range(4)]
    assert [block.block_id for block in order] == [3, 2, 1, 0]
    assert tier.cache.num_evicted == 3
    assert len(tier.cache) == 0
    tier.check_integrity()


def test_a_hit_takes_a_block_out_of_the_way_of_eviction():
    tier = tier_of(2)
    old, new = chain([0]), chain([1])
    blocks = cached_chain(tier, old) + cached_chain(tier, new)
    tier.pool.retain(tier.cache.match(old)[0])
    assert tier.pool.allocate(account(tier)) is blocks[1]
    assert tier.pool.num_available == 0
    tier.check_integrity()


def test_what_was_used_last_is_evicted_last():
    tier = tier_of(2)
    old, new = chain([0]), chain([1])
    blocks = cached_chain(tier, old) + cached_chain(tier, new)
    tier.pool.retain(blocks[0])
    tier.pool.release([blocks[0]])
    assert tier.pool.allocate(account(tier)) is blocks[1]


def test_eviction_takes_first_from_the_owner_furthest_above_its_share():
    tier = tier_of(8)
    cached_chain(tier, chain([0], [1], owner="beta"), owner="beta")  # unused for longest, but within its share
    cached_chain(tier, chain([2], [3], [4], [5], [6], [7]))
    gamma = account(tier, "gamma")
    assert [tier.pool.allocate(gamma).block_id for _ in range(3)] == [7, 6, 5]
    tier.check_integrity()


def test_a_larger_weight_is_a_larger_share():
    tier = tier_of(8, acme=Quota(weight=6.0), beta=Quota(weight=1.0))
    cached_chain(tier, chain([0], [1], [2], owner="beta"), owner="beta")
    cached_chain(tier, chain([3], [4], [5], [6], [7]))
    evicted = [tier.pool.allocate(account(tier, "gamma")).block_id for _ in range(2)]
    assert evicted == [2, 1]  # acme has more, beta is further above its seventh


def test_what_is_reserved_belongs_to_the_share():
    tier = tier_of(8, acme=Quota(reserved_blocks=5))
    cached_chain(tier, chain([0], [1], [2], owner="beta"), owner="beta")
    cached_chain(tier, chain([3], [4], [5], [6], [7]))
    assert tier.pool.allocate(account(tier, "gamma")).block_id == 2


# The prefix cache


def test_a_match_ends_at_the_first_block_that_is_not_there():
    tier = tier_of(3)
    contents = chain([1, 2], [3, 4], [5, 6], salt=b"salt")
    for content in (contents[0], contents[2]):
        tier.register(tier.pool.allocate(account(tier)), content, 1)
    assert [block.block_id for block in tier.cache.match(contents)] == [0]


def test_one_block_is_given_out_for_each_content():
    tier = tier_of(2)
    (content,) = chain([1, 2])
    first, second = (tier.pool.allocate(account(tier)) for _ in range(2))
    assert tier.register(first, content, 1)
    assert not tier.register(second, content, 1)
    assert tier.cache.get(content) is first
    tier.pool.release([first, second])
    assert (tier.pool.num_free, tier.pool.num_cached) == (1, 1)
    tier.check_integrity()


def test_a_match_is_verified_against_the_tokens():
    tier = tier_of(1)
    ((real,), (other,)) = chain([1, 2]), chain([1, 3])
    tier.register(tier.pool.allocate(account(tier)), real, 1)
    other.identity = real.identity  # a collision
    assert tier.cache.match([other]) == []


def test_a_match_is_verified_against_the_tokens_before_the_block_too():
    tier = tier_of(1)
    (_, real), (_, other) = chain([1, 2], [5, 6]), chain([3, 4], [5, 6])
    tier.register(tier.pool.allocate(account(tier)), real, 1)
    other.identity, other.parent = real.identity, real.parent  # their first blocks' names collide
    assert tier.cache.get(other) is None


def test_siblings_are_the_newest_few_of_the_same_prefix_and_salt():
    tier = tier_of(20)
    for token in range(12):
        cached_chain(tier, chain([token]))
    cached_chain(tier, chain([50], salt=b"other"))
    found = tier.cache.siblings(ROOT, b"", step=2)
    assert [block.block_id for block in found] == list(range(11, 11 - MAX_SIBLINGS, -1))


def test_siblings_that_are_being_written_hide_none_that_are_there():
    tier = tier_of(20)
    cached_chain(tier, chain([1]))
    for token in range(2, 2 + MAX_SIBLINGS):
        tier.register(tier.pool.allocate(account(tier)), chain([token])[0], 2)
    assert [block.block_id for block in tier.cache.siblings(ROOT, b"", step=2)] == [0]


def test_an_evicted_name_is_remembered_until_it_is_back():
    tier = tier_of(1)
    (content,) = chain([1])
    cached_chain(tier, [content])
    assert not tier.cache.was_evicted(content)
    tier.pool.release([tier.pool.allocate(account(tier))])
    assert tier.cache.was_evicted(content)
    cached_chain(tier, [content])
    assert not tier.cache.was_evicted(content)


def test_names_of_evicted_blocks_take_limited_room():
    tier = MemoryTier("executor-0", Tier.DEVICE, 1, {}, KVEventLog(), UntoldContents())
    contents = [chain([token])[0] for token in range(3000)]
    for content in contents:
        cached_chain(tier, [content])
    remembered = sum(map(tier.cache.was_evicted, contents))
    assert 1000 < remembered < 1100


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
    parent, tokens, salt, adapter = other
    assert block_identity(ROOT, pack([1, 2]), b"salt") != block_identity(parent, pack(tokens), salt, adapter)


# Quotas


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"reserved_blocks": -1}, "negative"),
        ({"max_blocks": -1}, "negative"),
        ({"reserved_blocks": 5, "max_blocks": 4}, "above max_blocks"),
        ({"weight": 0.0}, "weight"),
    ],
)
def test_an_impossible_quota_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Quota(**options)


def test_reservations_beyond_the_pool_are_cut_in_proportion():
    tier = tier_of(9, acme=Quota(reserved_blocks=12), beta=Quota(reserved_blocks=6))
    assert [account(tier, owner).reserved for owner in ("acme", "beta")] == [6, 3]
