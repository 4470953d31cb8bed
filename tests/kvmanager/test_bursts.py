"""Requests that arrive together and begin alike: their common beginning is computed once, whatever else happens."""

from __future__ import annotations

import pytest

from kvmanager.accounts import Quota
from kvmanager.cost_model import Preemption
from kvmanager.events import EventKind
from kvmanager.kv_events import BlockStored
from kvmanager.request import PrefixMatchEnd
from kvmanager.spec import PinOrder, Scope
from tests.kvmanager.harness import Harness

NUM_REQUESTS = 64
COMMON, OWN = 512, 32
BLOCK_SIZE = 16
ACME = Scope(b"acme", "acme", 1)
BETA = Scope(b"beta", "beta", 1)


def harness(**options: object) -> Harness:
    settings = {"num_blocks": 600, "block_size": BLOCK_SIZE, "max_model_len": 1000, "max_sequences": 64}
    return Harness(**{**settings, "max_batched_tokens": 512, **options})  # type: ignore[arg-type]


def burst(h: Harness, common: list[int], num_requests: int = NUM_REQUESTS, own: int = OWN, **options: object) -> None:
    """Requests named by their number; no two own parts start with the same token."""
    for index in range(num_requests):
        h.submit(index, [*common, index % 50, index // 50, *h.prompt(own - 2)], **options)


def computed_tokens(h: Harness) -> int:
    return sum(h.prefilled_tokens(handle) for handle in h.specs)


@pytest.mark.parametrize("max_batched_tokens", [64, 200, 512, 2048, 8192])
def test_a_common_prompt_is_computed_once(max_batched_tokens):
    h = harness(max_batched_tokens=max_batched_tokens)
    burst(h, h.prompt(COMMON), max_tokens=4)
    h.run_and_check()
    assert computed_tokens(h) <= COMMON + NUM_REQUESTS * OWN
    assert computed_tokens(h) + h.counters.cached_prompt_tokens == NUM_REQUESTS * (COMMON + OWN)
    assert all(h.usage[index].cached_tokens >= COMMON for index in range(1, NUM_REQUESTS))


@pytest.mark.parametrize("every", [1, 3])
def test_a_common_prompt_is_computed_once_where_requests_come_one_after_the_other(every):
    """Each meets the prefix at another stage: not begun, begun, under way, done."""
    h = harness(max_batched_tokens=128)
    common = h.prompt(COMMON)
    for index in range(NUM_REQUESTS):
        h.submit(index, [*common, index % 50, index // 50, *h.prompt(OWN - 2)], max_tokens=4)
        if index % every == 0:
            h.step()
    h.run_and_check()
    assert computed_tokens(h) <= COMMON + NUM_REQUESTS * OWN


def test_requests_wait_for_the_step_that_computes_their_prefix_not_for_its_request():
    h = harness(max_batched_tokens=2048)
    burst(h, h.prompt(COMMON), 3, max_tokens=50)
    batch = h.schedule()
    assert batch is not None
    assert batch.row_num_tokens == [COMMON + OWN, OWN, OWN]
    h.run_and_check()


def test_equal_prompts_share_all_but_the_block_of_their_last_token():
    h = harness(max_batched_tokens=2048)
    prompt = h.prompt(COMMON)
    for index in range(8):
        h.submit(index, prompt, max_tokens=4)
    h.step()
    for index in range(8, 16):
        h.submit(index, prompt, max_tokens=4)
    h.run_and_check()
    # In the step that computes a block nobody can copy it: only whole blocks are shared there.
    assert [h.prefilled_tokens(index) for index in range(16)] == [COMMON, *[BLOCK_SIZE] * 7, *[1] * 8]


def test_where_the_common_part_ends_inside_a_block_one_step_computes_its_rest_for_each():
    """Later ones copy it, however many have it by then."""
    h = harness(max_batched_tokens=512)
    burst(h, h.prompt(COMMON + 7), max_tokens=4)
    h.run_and_check()
    in_one_step = (512 - 7 - OWN) // (7 + OWN)
    assert computed_tokens(h) <= COMMON + 7 + NUM_REQUESTS * OWN + 7 * (in_one_step + 1)


def test_nothing_is_shared_across_scopes():
    h = harness(max_batched_tokens=2048)
    common = h.prompt(COMMON)
    for index in range(16):
        scope = (ACME, BETA)[index % 2]
        h.submit(index, [*common, index, *h.prompt(OWN - 1)], max_tokens=4, scope=scope, tenant=scope.owner)
    h.run_and_check()
    assert 2 * COMMON < computed_tokens(h) <= 2 * COMMON + 16 * OWN


def test_a_shared_prefix_is_charged_once_to_its_owner():
    docs = Scope(b"docs", "shared:docs", 0)
    h = harness(max_batched_tokens=2048)
    common = h.prompt(COMMON)
    for index, scope in enumerate((ACME, BETA, ACME)):
        spans = ((COMMON, docs), (OWN, scope))
        h.submit(index, [*common, index, *h.prompt(OWN - 1)], max_tokens=1, spans=spans, tenant=scope.owner)
    h.schedule()
    assert [h.charged(owner) for owner in ("shared:docs", "acme", "beta")] == [32, 4, 2]
    h.run_and_check()


def test_a_tenant_at_its_limit_shares_what_it_has_no_room_for():
    h = harness(max_batched_tokens=2048, quotas={"acme": Quota(max_blocks=40)})
    burst(h, h.prompt(COMMON), 8, max_tokens=1, scope=ACME, tenant="acme")
    h.schedule()
    assert len(h.replica.scheduler.running) == 1 + (40 - 34) // 2
    h.run_and_check()
    assert computed_tokens(h) <= COMMON + 8 * OWN


def test_usage_says_what_came_from_a_step_under_way():
    h = harness(max_batched_tokens=2048)
    burst(h, h.prompt(COMMON), 3, max_tokens=1)
    h.run_and_check()
    assert [h.usage[index].cached_tokens for index in range(3)] == [0, COMMON, COMMON]
    assert {h.usage[index].prefix_match_end for index in range(3)} == {PrefixMatchEnd.NEVER_SEEN}


def test_others_are_told_of_a_shared_block_once():
    h = harness(max_batched_tokens=2048)
    burst(h, h.prompt(COMMON), 8, max_tokens=1)
    h.run_and_check()
    _, events = h.manager.kv_events.since(1)
    stored = [event.identity for event in events if isinstance(event, BlockStored)]
    assert len(stored) == len(set(stored)) == COMMON // BLOCK_SIZE + 8 * OWN // BLOCK_SIZE


# Whoever computes it may leave


def leave(h: Harness, how: str) -> None:
    """The request that computes the common prefix goes away while its first chunks are under way."""
    if how == "abort":
        h.abort(0)
        del h.specs[0]
    elif how == "deadline":
        h.expire(h.now + 10.0)
        del h.specs[0], h.errors[0]
    else:
        h.lose_and_return()


@pytest.mark.parametrize("num_under_way", [1, 2])
@pytest.mark.parametrize("how", ["abort", "deadline", "executor lost"])
def test_the_one_that_computes_the_prefix_leaves_in_the_middle(how, num_under_way):
    """What it has begun others use; the rest the next one computes."""
    h = harness(max_batched_tokens=128)
    common = h.prompt(COMMON)
    burst(h, common, 1, max_tokens=8, deadline=5.0 if how == "deadline" else None)
    for _ in range(num_under_way):
        h.schedule()
    for index in range(1, 9):
        h.submit(index, [*common, index, *h.prompt(OWN - 1)], max_tokens=8)
    begun = h.prefilled_tokens(0)
    leave(h, how)
    h.run_and_check()
    once = COMMON + len(h.specs) * OWN
    assert computed_tokens(h) <= (once + begun if how == "executor lost" else once - begun)


@pytest.mark.parametrize("preemption", [Preemption.SWAP, Preemption.RECOMPUTE])
def test_the_one_that_computes_the_prefix_is_preempted_in_the_middle(preemption):
    h = harness(num_blocks=38, max_batched_tokens=32, max_sequences=8, num_host_blocks=40, preemption=preemption)
    h.submit("ahead", h.prompt(62), max_tokens=8)
    common = h.prompt(COMMON)
    burst(h, common, 1, max_tokens=8)
    while not h.handles(EventKind.PREEMPTED):
        h.step()
    assert BLOCK_SIZE < h.prefilled_tokens(0) < COMMON
    for index in range(1, 9):
        h.submit(index, [*common, index, *h.prompt(OWN - 1)], max_tokens=8)
    h.run_and_check()
    evicted = 3 * BLOCK_SIZE  # for the one ahead
    assert computed_tokens(h) <= 62 + COMMON + 9 * OWN + evicted


def test_blocks_of_an_aborted_request_are_used_before_they_have_been_computed():
    h = harness(max_batched_tokens=2048)
    common = h.prompt(COMMON)
    burst(h, common, 1, max_tokens=8)
    h.schedule()
    table = h.table(0)
    h.abort(0)
    del h.specs[0]
    h.submit("next", [*common, 49, *h.prompt(OWN - 1)], max_tokens=8)
    batch = h.schedule()
    assert batch is not None
    assert batch.row_num_tokens == [OWN]
    assert h.table("next")[: COMMON // BLOCK_SIZE] == table[: COMMON // BLOCK_SIZE]
    h.run_and_check()


def test_a_prefix_under_way_can_be_pinned():
    h = harness(max_batched_tokens=2048)
    common = h.prompt(COMMON)
    burst(h, common, 4, max_tokens=1)
    h.submit("pin", common, max_tokens=1, pin=PinOrder("kept", 60.0))
    batch = h.schedule()
    assert batch is not None
    assert sum(batch.row_num_tokens) == COMMON + 4 * OWN + BLOCK_SIZE
    h.run_and_check()
    assert h.referenced_blocks == COMMON // BLOCK_SIZE


def test_a_burst_over_several_executors_computes_the_prefix_once_on_each():
    h = harness(num_executors=2, max_batched_tokens=512)
    burst(h, h.prompt(COMMON), max_tokens=4)
    h.run_and_check()
    assert computed_tokens(h) <= 2 * COMMON + NUM_REQUESTS * OWN


def test_requests_go_where_their_prefix_is_under_way():
    """Those in line there before them have little to compute either."""
    h = harness(num_executors=3, max_batched_tokens=2048)
    common = h.prompt(COMMON)
    burst(h, common, 1, max_tokens=8)
    for name in h.oracles:
        h.schedule(name)
    for index in range(1, 8):
        h.submit(index, [*common, index, *h.prompt(OWN - 1)], max_tokens=8)
    h.run_and_check()
    assert len({event.executor for event in h.events if event.kind is EventKind.ADMITTED}) == 1
    assert computed_tokens(h) <= COMMON + 8 * OWN


def test_a_burst_is_spread_by_what_each_executor_has_to_compute():
    """One has the prefix; on the other the first of those that go there computes it for the rest, who know that."""
    h = harness(num_executors=2, max_batched_tokens=512)
    common = h.prompt(COMMON)
    h.submit("before", [*common, 49], max_tokens=1)
    h.run()
    burst(h, common, max_tokens=4)
    h.run_and_check()
    computed = dict.fromkeys(h.oracles, 0)
    for event in h.events:
        if event.kind is EventKind.PREFILL and event.handle != "before":
            computed[event.executor] += event.value
    assert sum(computed.values()) <= COMMON + NUM_REQUESTS * OWN
    assert max(computed.values()) < 1.4 * min(computed.values())


def test_a_prefix_is_not_expected_of_a_request_that_has_left():
    h = harness(num_executors=2, max_batched_tokens=512)
    common = h.prompt(COMMON)
    h.submit("leaves", [*common, 1], max_tokens=4)
    h.abort("leaves")
    del h.specs["leaves"]
    h.submit("other", h.prompt(400), max_tokens=4)  # where the first one was
    h.submit("next", [*common, 2], max_tokens=4)
    h.run_and_check()
    homes = {event.handle: event.executor for event in h.events if event.kind is EventKind.ADMITTED}
    assert homes["next"] != homes["other"]
