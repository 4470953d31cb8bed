"""Who may reuse whose keys and values, segment by segment, and why a match ended where it did."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest

from kvmanager.content import ScopeMap
from kvmanager.request import PrefixMatchEnd
from kvmanager.spec import Scope
from kvmanager.step import Speeds
from tests.kvmanager.harness import Harness

# What a gateway makes of `shared:docs`, `tenant`, `app` and `request`.
DOCS = Scope(b"shared/docs", "shared:docs", 0)
ACME = Scope(b"acme", "acme", 1)
ACME_CHAT = Scope(b"acme/chat", "acme", 2)
ACME_MAIL = Scope(b"acme/mail", "acme", 2)
BETA = Scope(b"beta", "beta", 1)


def only_this(number: int) -> Scope:
    return Scope(b"acme/request/%d" % number, "acme", 3)


def cached(h: Harness, prompt: list[int], *spans: tuple[int, Scope], tenant: str = "acme") -> int:
    """Runs a request, and returns how much of it came from the cache."""
    handle = len(h.specs)
    h.submit(handle, prompt, max_tokens=2, spans=spans, tenant=tenant)
    h.run_and_check()
    return h.usage[handle].cached_tokens


# One scope for the whole prompt


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        (only_this(1), only_this(1), True),  # its own samples, and itself after a preemption
        (only_this(1), only_this(2), False),
        (ACME_CHAT, ACME_CHAT, True),
        (ACME_CHAT, ACME_MAIL, False),
        (ACME_CHAT, ACME, False),
        (ACME, ACME, True),
        (ACME, BETA, False),
        (DOCS, DOCS, True),
        (DOCS, ACME, False),
    ],
)
def test_only_the_same_scope_shares(first, second, shared):
    h = Harness(block_size=4)
    prompt = h.prompt(16)
    assert cached(h, prompt, (16, first)) == 0
    assert cached(h, prompt, (16, second)) == (15 if shared else 0)


def test_tenants_that_joined_a_namespace_share_it():
    h = Harness(block_size=4)
    prompt = h.prompt(16)
    assert cached(h, prompt, (16, DOCS), tenant="acme") == 0
    assert cached(h, prompt, (16, DOCS), tenant="beta") == 15


def test_another_scope_is_not_copied_from_in_part_either():
    h = Harness(block_size=8)
    prompt = h.prompt(16)
    cached(h, prompt, (16, ACME))
    assert cached(h, [*prompt[:12], 1, 2], (14, BETA), tenant="beta") == 0
    assert cached(h, [*prompt[:12], 1, 2], (14, ACME)) == 12


# Segments


def test_a_shared_beginning_and_a_private_end():
    h = Harness(block_size=4)
    system, secret = h.prompt(12), h.prompt(12)
    prompt = system + secret
    assert cached(h, prompt, (12, DOCS), (12, ACME), tenant="acme") == 0
    assert cached(h, prompt, (12, DOCS), (12, BETA), tenant="beta") == 12
    assert cached(h, prompt, (12, DOCS), (12, ACME), tenant="acme") == 23


def test_three_scopes_in_one_prompt():
    h = Harness(block_size=4)
    prompt = h.prompt(24)
    spans = ((8, DOCS), (8, ACME), (8, ACME_CHAT))
    cached(h, prompt, *spans)
    assert cached(h, prompt, *spans) == 23
    assert cached(h, prompt, (8, DOCS), (8, ACME), (8, ACME_MAIL)) == 16
    assert cached(h, prompt, (8, DOCS), (8, BETA), (8, ACME_CHAT)) == 8


def test_of_two_scopes_in_one_block_the_narrower_counts():
    h = Harness(block_size=4)
    prompt = h.prompt(16)
    cached(h, prompt, (6, DOCS), (10, ACME))
    assert cached(h, prompt, (6, DOCS), (10, BETA), tenant="beta") == 4, "of 6 shared tokens, one block"
    assert cached(h, prompt, (6, DOCS), (10, ACME)) == 15
    assert cached(h, prompt, (5, DOCS), (11, ACME)) == 15, "where in the block the border is does not matter"


def test_a_narrow_part_in_the_middle_of_a_block_makes_it_narrow():
    h = Harness(block_size=8)
    prompt = h.prompt(24)
    cached(h, prompt, (10, DOCS), (2, ACME), (12, DOCS))
    assert cached(h, prompt, (24, DOCS)) == 8
    assert cached(h, prompt, (10, DOCS), (2, BETA), (12, DOCS), tenant="beta") == 8


def test_the_same_blocks_behind_another_scope_are_not_the_same():
    """What comes after a private part depends on it."""
    h = Harness(block_size=4)
    prompt = h.prompt(16)
    cached(h, prompt, (8, ACME), (8, DOCS))
    assert cached(h, prompt, (8, BETA), (8, DOCS), tenant="beta") == 0


def test_the_answer_has_the_last_parts_scope():
    h = Harness(block_size=4)
    prompt = h.prompt(8)
    h.submit("turn 1", prompt, max_tokens=9, spans=((8, DOCS), (0, ACME)))
    h.run()
    conversation = prompt + h.output["turn 1", 0] + [1, 2, 3]
    assert cached(h, conversation, (8, DOCS), (12, BETA), tenant="beta") == 8
    assert cached(h, conversation, (8, DOCS), (12, ACME)) == 16


def test_scopes_hold_in_the_host_tier():
    h = Harness(num_blocks=10, block_size=4, num_host_blocks=40)
    prompt = h.prompt(32)
    cached(h, prompt, (16, DOCS), (16, ACME))
    cached(h, h.prompt(36), (36, BETA), tenant="beta")
    assert h.counters.swapped_out_blocks >= 8
    assert cached(h, prompt, (16, DOCS), (16, BETA), tenant="beta") == 16
    assert h.counters.host_cached_prompt_tokens == 16


@pytest.mark.parametrize(
    ("spans", "owners"),
    [
        ([(0, ACME)], ["acme"] * 5),
        ([(16, DOCS)], ["shared:docs"] * 5),
        ([(8, DOCS), (8, ACME)], ["shared:docs"] * 2 + ["acme"] * 3),
        ([(8, DOCS), (0, ACME)], ["shared:docs"] * 2 + ["acme"] * 3),
        ([(7, DOCS), (0, ACME)], ["shared:docs"] + ["acme"] * 4),
        ([(7, ACME), (0, DOCS)], ["acme"] * 2 + ["shared:docs"] * 3),
        ([(1, ACME), (1, DOCS), (1, ACME), (0, DOCS)], ["acme"] + ["shared:docs"] * 4),
    ],
)
def test_a_blocks_scope_is_the_narrowest_of_its_tokens(spans, owners):
    scopes = ScopeMap(spans, block_size=4)
    assert [scopes[index].owner for index in range(5)] == owners
    for first, end in combinations(range(6), 2):
        assert scopes.owners(first, end) == Counter(owners[first:end])
    assert scopes.owners(3, 3) == scopes.owners(3, 2) == Counter()


# Why a match ended


def match_end(h: Harness, prompt: list[int], scope: Scope = ACME, tenant: str = "acme") -> PrefixMatchEnd | None:
    handle = len(h.specs)
    h.submit(handle, prompt, max_tokens=1, scope=scope, tenant=tenant)
    h.run_and_check()
    return h.usage[handle].prefix_match_end


def test_the_next_block_was_never_seen():
    h = Harness(block_size=4)
    prompt = h.prompt(16)
    assert match_end(h, prompt) is PrefixMatchEnd.NEVER_SEEN
    assert match_end(h, [*prompt[:8], *h.prompt(8)]) is PrefixMatchEnd.NEVER_SEEN


def test_the_next_block_was_evicted():
    h = Harness(num_blocks=8, block_size=4)
    prompt = h.prompt(16)
    match_end(h, prompt)
    match_end(h, h.prompt(28))
    assert match_end(h, prompt) is PrefixMatchEnd.EVICTED


def test_the_next_block_is_cached_in_another_scope_of_the_same_tenant():
    h = Harness(block_size=4)
    prompt = h.prompt(16)
    match_end(h, prompt, ACME_CHAT)
    assert match_end(h, prompt, ACME_MAIL) is PrefixMatchEnd.OTHER_SCOPE


@pytest.mark.parametrize("other", [BETA, DOCS])
def test_what_another_owner_has_cached_is_not_told(other):
    h = Harness(block_size=4)
    prompt = h.prompt(16)
    match_end(h, prompt, other, tenant="beta")
    assert match_end(h, prompt, ACME) is PrefixMatchEnd.NEVER_SEEN


def test_the_rest_does_not_fill_a_block():
    h = Harness(block_size=4)
    prompt = h.prompt(15)
    match_end(h, prompt)
    assert match_end(h, prompt) is PrefixMatchEnd.PARTIAL_BLOCK


def test_all_is_cached_but_the_last_token_is_always_computed():
    h = Harness(block_size=4)
    prompt = h.prompt(16)
    match_end(h, prompt)
    assert match_end(h, prompt) is PrefixMatchEnd.LAST_TOKEN
    h.replica.memory.costs.speeds = h.replica.memory.costs.speeds.__class__(1e6, 0.0, 0.0, 1.0)  # no part is copied
    assert match_end(h, prompt) is PrefixMatchEnd.LAST_TOKEN


def test_the_reason_is_that_of_the_first_admission():
    h = Harness(num_blocks=12, block_size=2)
    prompt = h.prompt(6)
    match_end(h, prompt)
    for name in ("a", "b"):
        h.submit(name, prompt[:4] + h.prompt(2), max_tokens=16, scope=ACME)
    h.run_and_check()
    assert h.counters.preemptions > 0
    assert h.usage["b"].cached_tokens == 4
    assert h.usage["b"].prefix_match_end is PrefixMatchEnd.NEVER_SEEN


def test_a_block_on_the_host_that_is_not_worth_fetching_counts_as_evicted():
    h = Harness(num_blocks=16, block_size=4, num_host_blocks=32)
    prompt = h.prompt(40)
    h.submit("a", prompt, max_tokens=1)
    h.run()
    h.submit("other", h.prompt(60), max_tokens=1)
    h.run()
    h.replica.memory.costs.speeds = Speeds(1e6, 10.0, 10.0, 1e6)
    h.submit("again", prompt, max_tokens=1)
    h.run()
    assert h.usage["again"].cached_tokens < 36
    assert h.usage["again"].prefix_match_end is PrefixMatchEnd.EVICTED


def test_what_another_request_computes_meanwhile_moves_the_end_of_the_match():
    h = Harness(num_blocks=64, block_size=4, max_batched_tokens=16, max_sequences=4)
    prompt = h.prompt(42)
    h.submit("a", prompt, max_tokens=2)
    h.step()
    h.submit("b", prompt, max_tokens=2)
    h.run()
    assert h.usage["b"].cached_tokens == 40
    assert h.usage["b"].prefix_match_end is PrefixMatchEnd.PARTIAL_BLOCK


def test_a_part_of_a_block_that_there_is_no_room_to_copy_does_not_count():
    h = Harness(num_blocks=5, block_size=4)
    prompt = h.prompt(16)
    h.submit("a", prompt, max_tokens=1)
    h.run()
    h.submit("other", h.prompt(2), max_tokens=2)
    h.schedule()
    h.submit("b", prompt[:14], max_tokens=1)  # the block to copy from would be one too many
    h.run()
    assert h.usage["b"].cached_tokens == 12
    assert h.usage["b"].prefix_match_end is PrefixMatchEnd.PARTIAL_BLOCK
