"""What is counted: waste, sharing, hits, time in each state, and how far a prompt is."""

from __future__ import annotations

import pytest

from kvmanager.cost_model import Preemption
from kvmanager.counters import WASTE_INTERVAL
from kvmanager.request import RequestState
from tests.kvmanager.harness import Harness


def counted(h: Harness) -> None:
    """Runs to the next step at which the use of memory is added up, and one further."""
    while h.counters.steps % WASTE_INTERVAL != 1:
        h.schedule()
        h.finish_steps()


# Waste (figure 2 of the paper)


def test_what_a_prompt_has_not_computed_yet_is_reserved():
    h = Harness(block_size=4, max_batched_tokens=16)
    h.submit("a", h.prompt(42), max_tokens=1)
    h.schedule()
    counters = h.counters
    assert counters.slot_steps == 11 * 4
    assert counters.reserved_slot_steps == 42 - 16
    assert counters.internal_slot_steps == 2
    h.run_and_check()


def test_empty_slots_of_a_last_block_are_internal_waste():
    h = Harness(block_size=8)
    h.submit("a", h.prompt(9), max_tokens=1)
    h.submit("b", h.prompt(16), max_tokens=1)
    h.schedule()
    assert h.counters.slot_steps == 4 * 8
    assert h.counters.internal_slot_steps == 7
    assert h.counters.reserved_slot_steps == 0


def test_blocks_that_wait_for_a_step_are_internal_waste():
    h = Harness(block_size=4)
    for index in range(WASTE_INTERVAL - 1):
        h.submit(index, h.prompt(4), max_tokens=1)
        h.schedule()
        h.finish_steps()
    h.submit("leaves", h.prompt(16), max_tokens=5)
    h.schedule()
    h.submit("stays", h.prompt(8), max_tokens=5)
    before = h.counters.internal_slot_steps
    h.abort("leaves")
    h.schedule()
    assert h.counters.steps == WASTE_INTERVAL + 1
    assert h.counters.internal_slot_steps - before == 16


def test_a_partly_filled_block_that_siblings_share_is_counted_once():
    h = Harness(block_size=8)
    h.submit("a", h.prompt(9), max_tokens=2, n=4)
    h.schedule()
    assert h.counters.slot_steps == 16
    assert h.counters.internal_slot_steps == 7
    h.run_and_check()


def test_waste_is_at_most_a_block_for_each_sequence():
    h = Harness(num_blocks=200, block_size=4, max_sequences=8)
    for index in range(20):
        h.submit(index, h.prompt(h.rng.randrange(10, 40)), max_tokens=30)
    h.run_and_check()
    counters = h.counters
    assert 0 < counters.internal_slot_steps < 4 * 8 * (1 + counters.steps // WASTE_INTERVAL)
    assert counters.internal_slot_steps + counters.reserved_slot_steps < 0.2 * counters.slot_steps


# Sharing and hits


def test_what_sharing_saves_is_counted():
    h = Harness(block_size=4)
    h.submit("a", h.prompt(16), max_tokens=40, n=4)
    h.schedule()
    assert h.counters.unshared_slot_steps == 4 * 16
    assert h.counters.slot_steps == 16
    slots, unshared = h.counters.slot_steps, h.counters.unshared_slot_steps
    h.schedule()
    h.finish_steps()
    counted(h)
    length = h.request("a").sequences[0].num_computed
    own = -(-length // 4) - 4
    assert h.counters.slot_steps - slots == 4 * (4 + 4 * own)
    assert h.counters.unshared_slot_steps - unshared == 4 * 4 * (4 + own)
    h.run_and_check()


def test_the_hit_rate_is_in_tokens():
    h = Harness(block_size=4)
    prompt = h.prompt(20)
    for index in range(4):
        h.submit(index, [*prompt, index], max_tokens=1)
        h.run()
    h.run_and_check()
    assert h.counters.prompt_tokens == 84
    assert h.counters.cached_prompt_tokens == 60
    assert h.counters.cached_prompt_tokens == sum(usage.cached_tokens for usage in h.usage.values())


def test_tokens_are_counted_that_somebody_gets():
    h = Harness()
    h.submit("a", h.prompt(5), max_tokens=7, n=3)
    h.submit("b", h.prompt(5), max_tokens=30)
    for _ in range(4):
        h.step()
    h.abort("b")
    h.run()
    assert h.usage["a"].completion_tokens == 21
    assert h.counters.generated_tokens == sum(map(len, h.output.values())) < 21 + 30


def test_the_peak_is_that_of_referenced_blocks():
    h = Harness(block_size=4)
    for index in range(3):
        h.submit(index, h.prompt(20), max_tokens=5)
        h.run()
    assert h.counters.peak_referenced_blocks == 6


# Time in each state


@pytest.mark.parametrize("preemption", [Preemption.SWAP, Preemption.RECOMPUTE])
def test_time_in_each_state_adds_up(preemption):
    h = Harness(num_blocks=12, block_size=2, num_host_blocks=40, max_sequences=2, preemption=preemption)
    lifetimes: dict[object, float] = {}
    for index in range(5):
        h.submit(index, h.prompt(6), max_tokens=16)
    while not h.manager.idle:
        h.now += 1.0
        h.step()
        for handle in h.usage:
            lifetimes.setdefault(handle, h.now)
    counters = h.counters
    assert counters.preemptions > 0
    assert counters.preempted_seconds > 0
    total = counters.waiting_seconds + counters.running_seconds + counters.preempted_seconds
    assert total == sum(lifetimes.values())


def test_a_request_waits_runs_and_is_preempted():
    h = Harness(num_blocks=12, block_size=2, num_host_blocks=40, preemption=Preemption.SWAP)
    h.submit("a", h.prompt(6), max_tokens=17)
    h.submit("b", h.prompt(6), max_tokens=17)
    h.now = 10.0
    h.step()
    assert h.counters.waiting_seconds == 20.0
    while h.request("b").state is not RequestState.SWAPPED:
        h.step()
    assert h.counters.running_seconds == 0.0
    h.now = 15.0
    h.abort("b")
    assert h.counters.preempted_seconds == 5.0
    h.now = 20.0
    h.abort("a")
    assert h.counters.running_seconds == 10.0


def test_time_without_an_executor_is_time_preempted_for_what_ran_and_time_waited_for_what_did_not():
    h = Harness()
    h.submit("a", h.prompt(6), max_tokens=17)
    h.step()
    h.detach()
    h.submit("b", h.prompt(6), max_tokens=17)
    h.now = 10.0
    h.attach()
    h.step()
    assert (h.counters.waiting_seconds, h.counters.preempted_seconds) == (10.0, 10.0)
    h.run_and_check()


def test_what_a_request_is_told_of_its_time():
    h = Harness(
        num_blocks=12,
        block_size=2,
        num_host_blocks=40,
        max_batched_tokens=4,
        max_sequences=4,
        preemption=Preemption.SWAP,
    )
    h.submit("a", h.prompt(6), max_tokens=17)
    h.submit("b", h.prompt(6), max_tokens=17)
    ended: dict[object, float] = {}
    while not h.manager.idle:
        h.now += 1.0
        h.step()
        for handle in h.usage:
            ended.setdefault(handle, h.now)
    for handle, times in h.times.items():
        assert times.prefill is not None
        assert times.prefill > 0
        assert times.decode > 0
        total = times.waiting + times.prefill + times.decode + times.preempted
        assert total == ended[handle]
    assert h.times["a"].to_first_token < h.times["b"].to_first_token  # its chunks came first
    assert [h.times[handle].preemptions for handle in "ab"] == [0, h.counters.preemptions]
    assert h.times["b"].preempted == h.counters.preempted_seconds > 0


def test_a_request_that_never_had_a_token_has_spent_no_time_on_decoding():
    h = Harness(block_size=4, max_batched_tokens=4, max_sequences=4)
    h.submit("a", h.prompt(20), max_tokens=4, deadline=3.0)
    h.step()
    h.now = 3.0
    h.take(h.manager.expire(h.now))
    times = h.times["a"]
    assert (times.to_first_token, times.decode, times.preemptions) == (3.0, 0.0, 0)


# Progress


def test_a_long_prompt_reports_how_far_it_is():
    h = Harness(block_size=4, max_batched_tokens=16)
    h.submit("a", h.prompt(50), max_tokens=4, report_progress=True)
    h.submit("quiet", h.prompt(50), max_tokens=4)
    h.run_and_check()
    assert [(each.handle, each.computed_tokens, each.prompt_tokens) for each in h.progress] == [
        ("a", 16, 50),
        ("a", 32, 50),
        ("a", 48, 50),
        ("a", 50, 50),
    ]


def test_progress_is_told_when_it_is_made_not_when_it_is_planned():
    h = Harness(block_size=4, max_batched_tokens=16)
    h.submit("a", h.prompt(50), max_tokens=4, report_progress=True)
    h.schedule()
    h.schedule()
    assert h.progress == []
    h.result()
    assert [each.computed_tokens for each in h.progress] == [16]


def test_what_is_cached_counts_as_progress():
    h = Harness(block_size=4, max_batched_tokens=16)
    prompt = h.prompt(50)
    h.submit("earlier", prompt[:24], max_tokens=1)
    h.run()
    h.submit("a", prompt, max_tokens=4, report_progress=True)
    h.run_and_check()
    assert [each.computed_tokens for each in h.progress] == [40, 50]


def test_nothing_is_told_of_a_request_that_is_over():
    h = Harness(block_size=4, max_batched_tokens=16)
    h.submit("a", h.prompt(50), max_tokens=4, report_progress=True)
    h.schedule()
    h.schedule()
    h.abort("a")
    h.finish_steps()
    assert h.progress == []


def test_the_answer_is_no_progress():
    h = Harness(num_blocks=12, block_size=2, max_batched_tokens=8, max_sequences=4)
    for name in ("a", "b"):
        h.submit(name, h.prompt(6), max_tokens=17, report_progress=True)
    h.run_and_check()
    assert h.counters.preemptions > 0
    assert all(each.computed_tokens <= 6 for each in h.progress)
