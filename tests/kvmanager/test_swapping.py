"""The host tier: preempted requests are moved there and back, evicted blocks stay findable there (section 4.5)."""

from __future__ import annotations

import pytest

from kvmanager.cost_model import Preemption
from kvmanager.events import EventKind
from kvmanager.kv_events import BlockRemoved, BlockStored, Tier
from kvmanager.request import PrefixMatchEnd, RequestState
from kvmanager.spec import BeamParams
from kvmanager.step import Speeds
from tests.kvmanager.harness import Harness


def swapping(num_blocks: int = 12, num_host_blocks: int = 40, **options: object) -> Harness:
    return Harness(
        num_blocks=num_blocks,
        num_host_blocks=num_host_blocks,
        **{"block_size": 2, "max_sequences": 8, "preemption": Preemption.SWAP, **options},  # type: ignore[arg-type]
    )


def until_swapped(h: Harness, handle: str) -> None:
    """Until a request is swapped out and no step is under way."""
    while h.request(handle).state is not RequestState.SWAPPED:
        h.step()
    h.finish_steps()


# Preempted requests


def test_a_swapped_out_request_comes_back_with_its_blocks_and_computes_nothing_twice():
    h = swapping(prefix_caching=False)
    for name in ("a", "b", "c"):
        h.submit(name, h.prompt(6), max_tokens=14)
    h.run_and_check()
    counters = h.counters
    assert counters.preemptions == counters.preemptions_by_swap > 0
    assert counters.swapped_in_blocks == counters.swapped_out_blocks > 0
    assert all(h.prefilled_tokens(name) == 6 for name in ("a", "b", "c"))


def test_a_swapped_out_request_holds_host_blocks_only():
    h = swapping()
    h.submit("a", h.prompt(6), max_tokens=17)
    h.submit("b", h.prompt(6), max_tokens=17)
    until_swapped(h, "b")
    (sequence,) = h.request("b").sequences
    assert sequence.table == []
    assert len(sequence.host_table) == -(-sequence.num_computed // 2)
    assert h.replica.memory.pool.num_referenced == len(h.table("a"))
    h.run_and_check()


def test_a_group_is_swapped_out_whole_and_each_shared_block_once():
    h = swapping(num_blocks=16, prefix_caching=False)
    h.submit("old", h.prompt(4), max_tokens=20)
    h.submit("group", h.prompt(9), max_tokens=6, n=3)
    until_swapped(h, "group")
    sequences = h.request("group").unfinished()
    entries = [block for sequence in sequences for block in sequence.host_table]
    assert len(sequences) == 3
    assert len(entries) == sum(-(-sequence.num_computed // 2) for sequence in sequences)
    assert h.counters.swapped_out_blocks == len(set(entries)) == len(entries) - 2 * 4  # the prompt's full blocks
    h.run_and_check()
    assert h.counters.swapped_in_blocks == h.counters.swapped_out_blocks


def test_a_group_comes_back_when_its_members_have_room_to_part():
    """Siblings that share a partly filled block copy it at once: without room for that they would go again."""
    h = swapping(num_blocks=8, block_size=8)
    h.submit("old", h.prompt(30), max_tokens=20)
    h.submit("group", h.prompt(10), max_tokens=6, n=4)
    h.run_and_check()
    assert h.handles(EventKind.PREEMPTED) == ["group"]


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair", "deadline"])
def test_nothing_new_is_admitted_ahead_of_what_is_swapped_out(policy):
    h = swapping(policy=policy)
    h.submit("a", h.prompt(6), max_tokens=17, tenant="acme", priority=1, deadline=50.0)
    h.submit("b", h.prompt(6), max_tokens=17, tenant="beta", deadline=60.0)
    until_swapped(h, "b")
    h.submit("small", h.prompt(1), max_tokens=1, tenant="gamma", priority=9, deadline=40.0)  # it would fit
    while h.request("b").state is RequestState.SWAPPED:
        assert h.request("small").state is RequestState.WAITING
        h.step()
    h.run_and_check()
    assert h.handles(EventKind.ADMITTED)[-2:] == ["b", "small"]


def test_what_is_swapped_out_comes_back_in_the_policys_order():
    h = swapping(num_blocks=14)
    for name in ("a", "b", "c"):
        h.submit(name, h.prompt(6), max_tokens=19)
    until_swapped(h, "c")
    until_swapped(h, "b")
    h.run_and_check()
    assert h.handles(EventKind.ADMITTED)[:5] == ["a", "b", "c", "b", "c"]


def test_a_swapped_prefix_that_another_still_holds_is_not_fetched():
    h = swapping(num_blocks=16)
    prefix = h.prompt(8)
    h.submit("a", [*prefix, 1], max_tokens=14)
    h.submit("b", [*prefix, 2], max_tokens=14)
    until_swapped(h, "b")
    shared = h.table("a")[:4]
    num_swapped = len(h.request("b").sequences[0].host_table)
    while h.request("b").state is RequestState.SWAPPED:
        h.step()
    assert h.counters.swapped_in_blocks <= num_swapped - 4 or h.table("b")[:4] == shared
    assert h.table("b")[:4] == shared
    h.run_and_check()


def test_requests_that_share_a_prefix_share_it_in_the_host_tier():
    h = swapping(num_blocks=18, block_size=2)
    prefix = h.prompt(8)
    h.submit("old", h.prompt(4), max_tokens=30)
    for name in ("b", "c"):
        h.submit(name, [*prefix, h.rng.randrange(50)], max_tokens=20)
    until_swapped(h, "c")
    until_swapped(h, "b")
    tables = [h.request(name).sequences[0].host_table for name in ("b", "c")]
    assert tables[0][:4] == tables[1][:4]
    h.run_and_check()


def test_what_the_host_tier_still_holds_is_not_moved_again():
    h = swapping(policy="priority")
    h.submit("high", h.prompt(6), max_tokens=17, priority=1)
    h.submit("low", h.prompt(6), max_tokens=17)
    until_swapped(h, "low")
    num_full = h.request("low").sequences[0].num_registered
    assert num_full >= 3
    while h.request("low").state is RequestState.SWAPPED:
        h.step()
    h.submit("higher", h.prompt(2), max_tokens=20, priority=1)
    moved: set[int] = set()
    while h.request("low").state is not RequestState.SWAPPED:
        batch = h.schedule()
        moved.update(host for _, host in (batch.swaps_out if batch else ()))
        h.finish_steps()
    table = {block.block_id for block in h.request("low").sequences[0].host_table}
    assert len(table - moved) == num_full
    assert table & moved
    h.run_and_check()


def test_a_swapped_out_request_that_is_over_frees_its_host_blocks():
    h = swapping()
    h.submit("a", h.prompt(6), max_tokens=17)
    h.submit("b", h.prompt(6), max_tokens=17, deadline=5.0)
    until_swapped(h, "b")
    assert h.replica.memory.host.pool.num_referenced > 0
    h.expire(5.0)
    assert list(h.errors) == ["b"]
    h.run()
    h.check_nothing_is_left()


@pytest.mark.parametrize("options", [{}, {"n": 2}, {"n": 2, "beam": BeamParams(3)}, {"best_of": 3}])
def test_a_request_that_is_swapped_out_when_its_executor_is_lost_is_computed_again(options):
    h = swapping(num_blocks=16)
    h.submit("a", h.prompt(12), max_tokens=16)
    h.submit("b", h.prompt(6), max_tokens=8, **options)
    until_swapped(h, "b")
    h.lose_and_return()
    assert h.request("b").state is RequestState.PREEMPTED
    h.run_and_check()
    assert h.prefilled_tokens("b") > 6


def test_a_sequence_decodes_in_the_step_after_the_one_that_fetches_its_blocks():
    h = swapping(prefix_caching=False)
    h.submit("a", h.prompt(6), max_tokens=17)
    h.submit("b", h.prompt(6), max_tokens=17)
    until_swapped(h, "b")
    h.abort("a")
    fetches, decodes = h.schedule(), h.schedule()
    assert fetches is not None
    assert decodes is not None
    (sequence,) = h.request("b").sequences
    assert [device for _, device in fetches.swaps_in] == h.table("b")[: len(fetches.swaps_in)]
    assert fetches.row_sequence_ids == []
    assert decodes.row_sequence_ids == [sequence.sequence_id]
    h.run()
    assert h.output["b", 0] == h.expected("b")


# The second-level prefix cache


def evicted_to_host(num_host_blocks: int = 40, **options: object) -> tuple[Harness, list[int]]:
    """A prompt whose blocks the device had to give up."""
    h = Harness(num_blocks=16, block_size=4, num_host_blocks=num_host_blocks, **options)  # type: ignore[arg-type]
    prompt = h.prompt(40)
    h.submit("first", prompt, max_tokens=1)
    h.run()
    h.submit("other", h.prompt(60), max_tokens=4)
    h.run()
    return h, prompt


def test_an_evicted_prefix_is_found_in_the_host_tier():
    h, prompt = evicted_to_host()
    moved = h.counters.swapped_out_blocks
    assert moved > 0
    h.submit("again", prompt, max_tokens=4)
    h.run_and_check()
    assert h.usage["again"].cached_tokens >= 36
    assert h.counters.host_cached_prompt_tokens > 0
    assert h.counters.host_cached_prompt_tokens == 4 * h.counters.swapped_in_blocks


def test_without_a_host_tier_it_is_computed_again():
    h, prompt = evicted_to_host(num_host_blocks=0)
    h.submit("again", prompt, max_tokens=4)
    h.run_and_check()
    assert h.usage["again"].cached_tokens < 36
    assert h.usage["again"].prefix_match_end is PrefixMatchEnd.EVICTED
    assert h.counters.swapped_out_blocks == h.counters.host_cached_prompt_tokens == 0


def test_a_whole_prompt_in_the_host_tier_still_computes_its_last_token():
    h, prompt = evicted_to_host()
    h.submit("again", prompt[:36], max_tokens=4)
    h.run_and_check()
    assert h.usage["again"].cached_tokens < 36
    assert h.prefilled_tokens("again") >= 1


def test_what_costs_more_to_move_than_to_compute_is_not_kept():
    h, _ = evicted_to_host(speeds=Speeds(1e6, 10.0, 10.0, 10.0))
    assert h.counters.swapped_out_blocks == 0


def test_what_costs_more_to_fetch_than_to_compute_is_not_fetched():
    h, prompt = evicted_to_host()
    h.replica.memory.costs.speeds = Speeds(1e6, 10.0, 10.0, 10.0)
    h.submit("again", prompt, max_tokens=4)
    h.run_and_check()
    assert h.counters.swapped_in_blocks == 0


def test_the_host_tier_evicts_what_was_unused_for_longest():
    h = Harness(num_blocks=12, block_size=4, num_host_blocks=14)
    prompts = [h.prompt(40) for _ in range(3)]
    for index, prompt in enumerate(prompts):
        h.submit(index, prompt, max_tokens=1)
        h.run()
    assert h.replica.memory.host.cache.num_evicted > 0
    h.submit("newest", prompts[1], max_tokens=1)
    h.run_and_check()
    assert h.usage["newest"].cached_tokens >= 36
    h.submit("oldest", prompts[0], max_tokens=1)
    h.run_and_check()
    assert h.usage["oldest"].cached_tokens < 36


def test_a_block_may_be_evicted_to_the_host_and_its_place_taken_in_one_step():
    h = Harness(num_blocks=10, block_size=4, num_host_blocks=40)
    prompts = [h.prompt(36) for _ in range(4)]
    for turn in range(3):
        for index, prompt in enumerate(prompts):
            h.submit((turn, index), prompt, max_tokens=4)
            h.run()
    h.run_and_check()
    assert h.counters.swapped_in_blocks > 20


def test_host_hits_save_what_they_promise():
    """All prompts in turn, a pool that holds one of them: each is computed once."""
    h = Harness(num_blocks=10, block_size=4, num_host_blocks=60)
    prompts = [h.prompt(36) for _ in range(5)]
    for turn in range(3):
        for index, prompt in enumerate(prompts):
            h.submit((turn, index), prompt, max_tokens=1)
            h.run()
            if turn:
                assert h.usage[turn, index].cached_tokens >= 32
    h.run_and_check()


def test_kv_events_say_what_is_in_which_tier():
    h, prompt = evicted_to_host()
    _, events = h.manager.kv_events.since(1)
    stored = [event for event in events if isinstance(event, BlockStored)]
    removed = [event for event in events if isinstance(event, BlockRemoved)]
    assert {event.tier for event in stored} == {Tier.DEVICE, Tier.HOST}
    assert {event.tier for event in removed} == {Tier.DEVICE}
    on_host = {event.identity for event in stored if event.tier is Tier.HOST}
    assert on_host == {event.identity for event in removed}
    number = h.manager.kv_events.last_number + 1
    h.submit("again", prompt, max_tokens=1)
    h.run()
    _, events = h.manager.kv_events.since(number)
    back = {event.identity for event in events if isinstance(event, BlockStored) and event.tier is Tier.DEVICE}
    assert back & on_host
