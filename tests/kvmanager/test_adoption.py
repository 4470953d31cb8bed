"""A KV manager takes over what the blocks of an executor hold already."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from kvmanager.content import ROOT, block_identity
from kvmanager.cost_model import Preemption
from kvmanager.events import EventKind
from kvmanager.kv_events import BlockStored, Tier
from kvmanager.request import PrefixMatchEnd, RequestState
from kvmanager.spec import Scope
from kvmanager.step import StoredBlock
from tests.kvmanager.harness import FIRST, Harness
from tests.kvmanager.kv_mirror import KVMirror

ACME = Scope(b"acme", "acme", 1)


def chain(first_block: int, *blocks: list[int], scope: Scope = ACME, tier: Tier = Tier.DEVICE) -> list[StoredBlock]:
    """Consecutive blocks with these tokens, in places that follow one another."""
    stored: list[StoredBlock] = []
    parent = ROOT
    for block_id, token_ids in enumerate(blocks, first_block):
        tokens = array("i", token_ids).tobytes()
        stored.append(StoredBlock(tier, block_id, block_identity(parent, tokens, scope.salt), parent, tokens, scope))
        parent = stored[-1].identity
    return stored


def attached(stored: list[StoredBlock], **options) -> Harness:
    """A KV manager that was told this about an executor's blocks of two tokens."""
    h = Harness(**{"num_blocks": 10, "block_size": 2, "num_host_blocks": 6, **options})
    h.take(h.manager.attach_executor(FIRST, h.capacity, h.now, h.speeds, stored))
    h.manager.check_integrity()
    return h


def cached(h: Harness) -> set[int]:
    return {block.block_id for block in h.replica.memory.pool.blocks if block.content is not None}


def disowned(h: Harness) -> list[tuple[Tier, int]]:
    """What the executor is told that nobody will ask for."""
    h.submit("any", [40], max_tokens=1)
    batch = h.manager.schedule(FIRST, h.now)
    assert batch is not None
    return batch.removed_blocks


def num_found(h: Harness, handle: str) -> int:
    """Tokens that were in memory when a request was admitted for the last time."""
    return [event.value for event in h.events if event.kind is EventKind.ADMITTED and event.handle == handle][-1]


# Hits


def test_a_prefix_is_as_warm_as_it_was():
    h = Harness(block_size=4)
    prompt = h.prompt(21)
    h.submit("before", prompt, max_tokens=4)
    h.run()
    h.lose_manager()
    h.submit("after", prompt, max_tokens=4)
    h.run_and_check()
    assert h.usage["after"].cached_tokens == 20


def test_a_request_goes_on_with_its_own_blocks():
    h = Harness(block_size=4)
    h.submit("a", h.prompt(30), max_tokens=30)
    for _ in range(12):
        h.step()
    h.lose_manager()
    h.step()
    assert num_found(h, "a") >= 36, "its own answer is warm, too"
    h.run_and_check()
    assert h.usage["a"].cached_tokens == 0, "what is found again is no hit"


def test_blocks_of_the_host_tier_are_taken_over():
    h = Harness(num_blocks=12, block_size=2, num_host_blocks=20, preemption=Preemption.SWAP)
    h.submit("stays", h.prompt(6), max_tokens=16)
    h.submit("goes", h.prompt(5), max_tokens=8, n=2)
    while h.schedule() is None or h.request("goes").state is not RequestState.SWAPPED:
        if len(h.oracle.pending) == 2:
            h.result()
    h.finish_steps()
    h.lose_manager()
    assert len(h.replica.memory.host.cache) > 0
    h.run_and_check()


def test_a_scope_stays_whose_it_was():
    h = Harness(num_blocks=20, block_size=4)
    prompt = h.prompt(12)
    h.submit("acme", prompt, max_tokens=1, scope=ACME, tenant="acme")
    h.run()
    h.lose_manager()
    h.submit("beta", prompt, max_tokens=1, scope=Scope(b"beta", "beta", 1), tenant="beta")
    h.submit("private", prompt, max_tokens=1, scope=Scope(b"acme/app", "acme", 2), tenant="acme")
    h.submit("acme too", prompt, max_tokens=1, scope=ACME, tenant="acme")
    h.run_and_check()
    assert h.usage["beta"].cached_tokens == 0
    assert h.usage["beta"].prefix_match_end is PrefixMatchEnd.NEVER_SEEN
    assert h.usage["private"].cached_tokens == 0
    assert h.usage["private"].prefix_match_end is PrefixMatchEnd.OTHER_SCOPE, "likenesses are those of this process"
    assert h.usage["acme too"].cached_tokens == 11


def test_a_part_of_a_block_is_copied():
    h = Harness(block_size=8)
    prompt = h.prompt(16)
    h.submit("before", prompt, max_tokens=1)
    h.run()
    h.lose_manager()
    h.submit("after", [*prompt[:13], *h.prompt(5)], max_tokens=4)
    h.run_and_check()
    assert h.usage["after"].cached_tokens >= 13


def test_a_new_connection_loses_no_block():
    h = Harness(block_size=4)
    prompt = h.prompt(21)
    h.submit("before", prompt, max_tokens=4)
    h.submit("runs", h.prompt(9), max_tokens=12)
    h.pin("kept", h.prompt(8))
    for _ in range(8):
        h.step()
    h.attach_again()
    h.submit("after", prompt, max_tokens=4)
    h.run_and_check()
    assert h.usage["after"].cached_tokens == 20
    (pin,) = h.manager.pins
    assert len(pin.blocks) == 2
    assert h.prefilled_tokens(("pin", "kept")) == 8, "it was computed once"


# What is taken, and what is not


def test_only_what_goes_on_from_what_is_there_is_taken():
    first, second, third = chain(0, [1, 2], [3, 4], [5, 6])
    (other,) = chain(7, [7, 8])
    h = attached([third, other, second, first])
    assert cached(h) == {0, 1, 2, 7}
    h = attached([first, third, other])
    assert cached(h) == {0, 7}
    assert disowned(h) == [(Tier.DEVICE, 2)]


def test_a_chain_may_lie_in_both_tiers():
    first, second, third = chain(0, [1, 2], [3, 4], [5, 6])
    second = replace(second, tier=Tier.HOST)
    h = attached([first, second, third, replace(first, tier=Tier.HOST)])
    assert cached(h) == {0, 2}
    assert len(h.replica.memory.host.cache) == 2
    assert disowned(h) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"identity": b"short"},
        {"identity": bytes(32)},
        {"identity": b""},
        {"parent": bytes(32)},
        {"tokens": b""},
        {"tokens": array("i", [1, 2, 3]).tobytes()},
        {"tokens": array("i", [2, 1]).tobytes()},
        {"scope": Scope(b"other", "acme", 1)},
    ],
)
def test_what_is_not_sound_is_free(changes):
    first, second = chain(3, [1, 2], [3, 4])
    h = attached([replace(first, **changes), second, *chain(6, [7, 8])])
    assert cached(h) == {6}
    assert sorted(disowned(h), key=str) == [(Tier.DEVICE, 3), (Tier.DEVICE, 4)]


@pytest.mark.parametrize("block_id", [-1, 10, 2**31 - 1])
@pytest.mark.parametrize("tier", list(Tier))
def test_blocks_that_are_not_there_are_passed_over(block_id, tier):
    (block,) = chain(block_id, [1, 2], tier=tier)
    h = attached([block, *chain(6, [7, 8])])
    assert cached(h) == {6}
    assert disowned(h) == []


def test_a_block_of_which_two_things_are_said_is_not_trusted():
    h = attached([*chain(3, [1, 2]), *chain(3, [5, 6]), *chain(4, [7, 8]), *chain(4, [7, 8])])
    assert cached(h) == set()
    assert disowned(h) == [(Tier.DEVICE, 3), (Tier.DEVICE, 4)]


def test_of_two_blocks_with_the_same_content_one_is_taken():
    h = attached([*chain(3, [1, 2]), *chain(5, [1, 2])])
    assert cached(h) == {3}
    assert disowned(h) == [(Tier.DEVICE, 5)]


def test_without_prefix_caching_nothing_is_taken():
    h = attached([*chain(3, [1, 2]), *chain(0, [1, 2], tier=Tier.HOST)], prefix_caching=False)
    assert cached(h) == set()
    assert disowned(h) == [(Tier.DEVICE, 3), (Tier.HOST, 0)]


def test_what_is_disowned_is_told_once_and_not_in_a_step_of_its_own():
    h = attached([*chain(3, [1, 2]), *chain(5, [1, 2])])
    assert h.manager.schedule(FIRST, h.now) is None
    assert disowned(h) == [(Tier.DEVICE, 5)]
    h.submit("next", [41], max_tokens=1)
    batch = h.manager.schedule(FIRST, h.now)
    assert batch.removed_blocks == []


# Accounts and order


def test_blocks_are_counted_for_their_owners():
    docs = Scope(b"docs", "shared:docs", 0)
    h = attached([*chain(0, [1, 2], [3, 4]), *chain(5, [1, 2], scope=docs)])
    accounts = h.replica.memory.pool.accounts
    assert [block.block_id for block in accounts["shared:docs"].cached] == [5]
    assert len(accounts["acme"].cached) == 2
    assert h.charged("acme") == 0


def test_tails_are_evicted_before_heads_and_what_is_older_first():
    old, new = chain(0, [1, 2], [3, 4], [5, 6]), chain(5, [7, 8], [9, 10])
    h = attached([*old[:2], *new, old[2]], num_blocks=8)  # the old chain was used again
    accounts = h.replica.memory.pool.accounts
    assert [block.block_id for block in accounts["acme"].cached] == [6, 5, 2, 1, 0]


def test_a_branch_keeps_what_it_shares():
    trunk = chain(0, [1, 2], [3, 4])
    branch = chain(0, [1, 2], [5, 6])[1]
    h = attached([*trunk, replace(branch, block_id=4)])
    accounts = h.replica.memory.pool.accounts
    assert [block.block_id for block in accounts["acme"].cached] == [1, 4, 0]


def test_routers_outside_hear_of_it_heads_first():
    h = Harness(num_blocks=10, block_size=2)
    mirror = KVMirror(h.manager)
    first, second, third = chain(0, [1, 2], [3, 4], [5, 6])
    h.take(h.manager.attach_executor(FIRST, h.capacity, h.now, None, [second, third, first]))
    mirror.check()
    told = [event for event in h.manager.kv_events.since(1)[1] if isinstance(event, BlockStored)]
    assert [event.identity for event in told] == [first.identity, second.identity, third.identity]


def test_a_chain_of_any_length():
    num_blocks = 20_000
    stored = chain(0, *([index % 50, index // 50] for index in range(num_blocks)))
    h = Harness(num_blocks=1, block_size=2)
    capacity = replace(h.capacity, num_blocks=num_blocks)
    h.manager.attach_executor(FIRST, capacity, h.now, None, reversed(stored))
    assert h.replica.memory.pool.num_cached == num_blocks
    h.manager.check_integrity()
