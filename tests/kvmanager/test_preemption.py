"""Who is preempted, and what becomes of the blocks: moved to the host tier, or computed again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvmanager.cost_model import CostModel, Preemption
from kvmanager.events import EventKind
from kvmanager.request import RequestState
from kvmanager.spec import BeamParams
from kvmanager.step import Speeds
from tests.kvmanager.harness import FIRST, Harness

# Swap or recompute


@pytest.mark.parametrize(
    ("speeds", "num_blocks", "num_tokens", "swap"),
    [
        # 10 blocks out and in at 100 a second are 0.2 s; 160 tokens at 1,000 a second are 0.16 s.
        (Speeds(1000.0, 100.0, 100.0), 10, 160, False),
        (Speeds(1000.0, 150.0, 150.0), 10, 160, True),
        (Speeds(1000.0, 1000.0, 70.0), 10, 160, True),
        (Speeds(1000.0, 70.0, 1000.0), 10, 160, True),
        (Speeds(1000.0, 1000.0, 60.0), 10, 160, False),
        (Speeds(500.0, 100.0, 100.0), 10, 160, True),
        # Siblings share their prompt's blocks, and computing it again is shared too.
        (Speeds(1000.0, 100.0, 100.0), 10, 201, True),
        (Speeds(1000.0, 100.0, 100.0), 10, 199, False),
    ],
)
def test_the_cheaper_way_is_chosen(speeds, num_blocks, num_tokens, swap):
    costs = CostModel(Preemption.AUTO, block_size=16)
    costs.speeds = speeds
    assert costs.prefers_swap(num_blocks, num_tokens) is swap


@pytest.mark.parametrize(
    "speeds", [Speeds(), Speeds(0.0, 1e6, 1e6), Speeds(1.0, 0.0, 1e6), Speeds(1.0, 1e6, 0.0)], ids=str
)
def test_what_is_not_measured_is_not_counted_on(speeds):
    costs = CostModel(Preemption.AUTO, block_size=16)
    costs.speeds = speeds
    assert costs.prefers_swap(1, 1000) is False


@pytest.mark.parametrize("speeds", [Speeds(1.0, 1e6, 1e6), Speeds(1e6, 1.0, 1.0), Speeds()], ids=str)
def test_either_way_can_be_forced(speeds):
    for preemption, swap in ((Preemption.SWAP, True), (Preemption.RECOMPUTE, False)):
        costs = CostModel(preemption, block_size=16)
        costs.speeds = speeds
        assert costs.prefers_swap(10, 160) is swap


def test_a_block_is_kept_fetched_or_copied_in_part_where_that_beats_computing_it():
    costs = CostModel(Preemption.AUTO, block_size=16)
    costs.speeds = Speeds(
        prefill_tokens_per_s=1600.0, swap_out_blocks_per_s=150.0, swap_in_blocks_per_s=150.0, copy_blocks_per_s=400.0
    )
    assert costs.fetches_from_host  # 1/150 s, where computing takes 1/100 s
    assert not costs.keeps_evicted  # out and in again: 2/150 s
    assert costs.copies_part(5)  # 1/400 s, where computing 4 takes as long
    assert not costs.copies_part(4)
    costs.speeds = Speeds()
    assert costs.fetches_from_host
    assert costs.keeps_evicted
    assert costs.copies_part(1)


def short_of_memory(preemption: Preemption = Preemption.AUTO, **options: object) -> Harness:
    """Two requests, of which the second has to be preempted."""
    settings = {"num_blocks": 12, "block_size": 2, "num_host_blocks": 40, **options}
    h = Harness(preemption=preemption, **settings)  # type: ignore[arg-type]
    for name in ("a", "b"):
        h.submit(name, h.prompt(6), max_tokens=17)
    return h


def ways(h: Harness) -> set[str]:
    return {event.detail for event in h.events if event.kind is EventKind.PREEMPTED}


@pytest.mark.parametrize(
    ("speeds", "way"), [(Speeds(10.0, 1e3, 1e3), "swap"), (Speeds(1e3, 10.0, 10.0), "recompute"), (None, "recompute")]
)
def test_the_executors_speeds_decide(speeds, way):
    h = short_of_memory(speeds=speeds)
    h.run_and_check()
    assert ways(h) == {way}


@pytest.mark.parametrize(("blocks_per_s", "way"), [(0.7, "recompute"), (1.5, "swap")])
def test_computing_a_prompt_again_for_several_samples_costs_it_once(blocks_per_s, way):
    h = Harness(18, 2, num_host_blocks=40, speeds=Speeds(1.0, blocks_per_s, blocks_per_s))
    h.submit("old", h.prompt(4), max_tokens=26)
    h.submit("group", h.prompt(9), max_tokens=7, n=3)
    while not h.details(EventKind.PREEMPTED, "group"):
        h.step()
    # About 8 + 3 * 5 tokens in 4 + 3 * 3 blocks: 23 s, where moving these takes 37 s, or 17 s.
    assert h.details(EventKind.PREEMPTED, "group") == [way]
    h.run_and_check()


def test_speeds_are_kept_current():
    h = short_of_memory(speeds=Speeds(1e3, 10.0, 10.0))
    h.schedule()
    result = h.oracle.run()
    assert result is not None
    h.take(h.manager.apply(FIRST, replace(result, speeds=Speeds(10.0, 1e3, 1e3)), h.now))
    h.run_and_check()
    assert ways(h) == {"swap"}


@pytest.mark.parametrize("options", [{}, {"n": 2}, {"n": 2, "beam": BeamParams(2)}, {"best_of": 2}])
@pytest.mark.parametrize("preemption", list(Preemption))
def test_the_answer_is_the_same_either_way(preemption, options):
    h = Harness(num_blocks=12, block_size=2, num_host_blocks=40, preemption=preemption, speeds=Speeds(100.0, 1e2, 1e2))
    h.submit("a", h.prompt(6), max_tokens=17)
    h.submit("b", h.prompt(6), max_tokens=9, **options)
    h.run_and_check()
    assert h.counters.preemptions > 0


def test_a_full_host_tier_leaves_recomputing():
    h = short_of_memory(Preemption.SWAP, num_host_blocks=3)
    h.run_and_check()
    assert ways(h) == {"recompute"}
    assert h.counters.preemptions_by_swap == 0


def test_host_blocks_that_are_only_cached_are_room_enough():
    h = Harness(num_blocks=12, block_size=2, num_host_blocks=10, preemption=Preemption.SWAP)
    for index in range(4):
        h.submit(index, h.prompt(20), max_tokens=1)
        h.run()
    assert h.replica.memory.host.pool.num_free == 0
    for name in ("a", "b"):
        h.submit(name, h.prompt(6), max_tokens=17)
    h.run_and_check()
    assert ways(h) == {"swap"}


def test_what_does_not_fit_into_the_host_tier_any_more_is_recomputed_and_the_rest_swapped():
    h = Harness(num_blocks=14, block_size=2, num_host_blocks=7, preemption=Preemption.SWAP, prefix_caching=False)
    for name in ("a", "b", "c"):
        h.submit(name, h.prompt(6), max_tokens=19)
    h.run_and_check()
    assert ways(h) == {"swap", "recompute"}


def test_a_group_is_preempted_whole():
    h = Harness(num_blocks=16, block_size=2, max_sequences=8)
    h.submit("old", h.prompt(4), max_tokens=20)
    h.submit("group", h.prompt(9), max_tokens=6, n=3)
    while not h.details(EventKind.PREEMPTED, "group"):
        h.step()
    assert h.request("group").state is RequestState.PREEMPTED
    assert not any(sequence.table for sequence in h.request("group").sequences)
    assert {sequence.request.spec.handle for sequence in h.replica.scheduler.live_sequences()} == {"old"}
    h.run_and_check()
    assert h.handles(EventKind.PREEMPTED).count("group") == h.counters.preemptions


# Who


@pytest.mark.parametrize(
    ("policy", "options", "victim"),
    [
        ("fcfs", {}, "c"),
        ("priority", {"a": {"priority": 1}, "b": {"priority": 0}, "c": {"priority": 2}}, "b"),
        ("fair", {"a": {"tenant": "acme"}, "b": {"tenant": "beta"}, "c": {"tenant": "beta"}}, "c"),
        ("deadline", {"a": {"deadline": 90.0}, "b": {"deadline": 80.0}, "c": {"deadline": 70.0}}, "a"),
    ],
)
def test_the_last_in_the_policys_order_is_preempted_first(policy, options, victim):
    h = Harness(num_blocks=15, block_size=2, policy=policy)
    for name in ("a", "b", "c"):
        h.submit(name, h.prompt(6), max_tokens=12, **options.get(name, {}))
    h.run_and_check()
    assert h.handles(EventKind.PREEMPTED)[0] == victim


def test_nobody_is_preempted_where_waiting_for_a_step_is_enough():
    """Blocks of a request that has left are still used by a step under way."""
    h = Harness(num_blocks=8, block_size=4, prefix_caching=False)
    h.submit("stays", h.prompt(11), max_tokens=12)
    h.submit("other", h.prompt(2), max_tokens=3)
    h.submit("leaves", h.prompt(15), max_tokens=4)
    h.schedule()
    h.schedule()
    h.abort("leaves")
    h.run()
    h.check_answers()
    assert h.counters.preemptions == 0


def test_the_first_in_line_is_never_preempted_for_others():
    h = Harness(num_blocks=20, block_size=2, max_sequences=16)
    for name in "abcdefgh":
        h.submit(name, h.prompt(4), max_tokens=20)
    h.run_and_check()
    assert h.counters.preemptions > 3
    assert "a" not in h.handles(EventKind.PREEMPTED)
    assert h.handles(EventKind.FINISHED)[0] == "a"


def test_a_preempted_request_goes_before_later_arrivals():
    h = short_of_memory()
    while not h.details(EventKind.PREEMPTED, "b"):
        h.step()
    h.submit("c", h.prompt(2), max_tokens=1)
    h.run_and_check()
    assert h.handles(EventKind.ADMITTED) == ["a", "b", "b", "c"]


def test_tokens_that_are_under_way_when_their_request_is_preempted_still_count():
    h = Harness(num_blocks=12, block_size=2)
    h.submit("a", h.prompt(6), max_tokens=16)
    h.submit("b", h.prompt(5), max_tokens=8, n=2)
    while h.schedule() is None or not h.details(EventKind.PREEMPTED, "b"):
        if len(h.oracle.pending) == 2:
            h.result()
    assert h.under_way("b")
    sequences = h.request("b").sequences
    before = [sequence.num_output for sequence in sequences]
    h.finish_steps()
    assert [sequence.num_output for sequence in sequences] == [num_output + 1 for num_output in before]
    h.run_and_check()


def test_what_is_computed_again_may_come_from_the_prefix_cache():
    h = short_of_memory(Preemption.RECOMPUTE)
    while not h.details(EventKind.PREEMPTED, "b"):
        h.step()
    h.abort("a")
    h.run()
    assert h.output["b", 0] == h.expected("b")
    assert h.prefilled_tokens("b") < 6 + 6
    assert h.usage["b"].cached_tokens == 0, "its own tokens are no hits"
