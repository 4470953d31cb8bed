"""Several executors of one model: which one a request goes to, and what happens when they come and go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvmanager.capacity import Capacity
from kvmanager.errors import InvalidRequest
from kvmanager.events import EventKind
from kvmanager.limits import Limits
from kvmanager.request import RequestState
from kvmanager.spec import BeamParams, PinOrder
from kvmanager.step import Speeds
from tests.kvmanager.harness import FIRST, Harness

SECOND = "executor-1"


def two_executors(**options: object) -> Harness:
    return Harness(block_size=4, num_executors=2, **options)  # type: ignore[arg-type]


def home(h: Harness, handle: str) -> str:
    """Where a request waits, runs, or is swapped out."""
    (name,) = [
        name
        for name, replica in h.manager.replicas.items()
        if handle in replica.scheduler.running
        or handle in replica.scheduler.swapped
        or handle in [request.spec.handle for request in replica.scheduler.waiting]
    ]
    return name


def admitted_on(h: Harness, handle: str) -> list[str]:
    return [event.executor for event in h.events if event.kind is EventKind.ADMITTED and event.handle == handle]


# Where a request goes


def test_a_request_goes_where_the_longest_prefix_is_cached():
    h = two_executors()
    prompt = h.prompt(40)
    h.submit("busy", h.prompt(8), max_tokens=1)
    h.submit("first", prompt, max_tokens=1)
    assert home(h, "first") == SECOND
    h.run()
    for length in (20, 40):
        h.submit(length, prompt[:length], max_tokens=1)
        assert home(h, length) == SECOND
        h.run()
    h.check_answers()


def test_a_request_goes_elsewhere_when_the_queue_before_its_prefix_is_longer_than_the_prefix():
    h = two_executors(num_blocks=200)
    prompt = h.prompt(40)
    h.submit("first", prompt, max_tokens=1)
    h.run()
    h.submit("long", [*prompt, *h.prompt(60)], max_tokens=1)
    assert home(h, "long") == FIRST
    h.submit("late", [*prompt, 2], max_tokens=1)
    assert home(h, "late") == SECOND, "41 tokens to compute, against 61"


def test_equal_requests_are_spread():
    h = two_executors()
    for name in "abcdef":
        h.submit(name, h.prompt(10), max_tokens=4)
    assert [len(replica.scheduler.waiting) for replica in h.manager.replicas.values()] == [3, 3]
    h.run_and_check()


def test_a_faster_executor_gets_more():
    h = Harness(block_size=4)
    h.speeds = Speeds(prefill_tokens_per_s=300.0)
    h.attach(FIRST)
    h.speeds = Speeds(prefill_tokens_per_s=100.0)
    h.attach(SECOND)
    for index in range(8):
        h.submit(index, h.prompt(10), max_tokens=1)
    assert [len(replica.scheduler.waiting) for replica in h.manager.replicas.values()] == [6, 2]


def test_rows_in_use_count_as_load():
    h = two_executors(max_sequences=4)
    h.submit("three rows", h.prompt(8), max_tokens=50, n=3)
    h.submit("one row", h.prompt(8), max_tokens=50)
    h.step()
    assert [home(h, name) for name in ("three rows", "one row")] == [FIRST, SECOND]
    h.submit("next", h.prompt(10), max_tokens=1)
    assert home(h, "next") == SECOND


def test_a_request_goes_where_it_fits():
    h = Harness(num_blocks=4, block_size=4)
    h.attach(SECOND, Capacity(40, 4, 200))
    h.submit("large", h.prompt(60), max_tokens=4)
    assert home(h, "large") == SECOND
    h.run_and_check()


def test_an_executor_that_states_limits_gets_no_larger_steps():
    h = Harness()
    h.attach(capacity=Capacity(64, 4, 200, max_batched_tokens=10, max_sequences=3))
    for i in range(6):
        h.submit(i, h.prompt(15), max_tokens=5)
    batches = []
    while not h.manager.idle:
        batches.append(h.schedule())
        h.result()
    assert max(sum(batch.row_num_tokens) for batch in batches) == 10
    assert max(len(batch.row_sequence_ids) for batch in batches) == 3
    h.run_and_check()


def test_where_limits_differ_the_smaller_one_counts():
    limits = Limits(64, 16, 100)
    for stated, expected in (((0, 0), (64, 16)), ((128, 32), (64, 16)), ((20, 0), (20, 16)), ((8, 0), (8, 8))):
        capacity = Capacity(64, 4, 200, max_batched_tokens=stated[0], max_sequences=stated[1])
        assert limits.within(capacity) == Limits(*expected, 100)


def test_more_samples_than_an_executor_runs_at_once_go_to_another_or_are_refused():
    h = Harness()
    h.attach(capacity=replace(h.capacity, max_sequences=2))
    with pytest.raises(InvalidRequest, match="n is 3; it must be from 1 to 2"):
        h.submit("alone", h.prompt(8), n=3)
    h.attach(SECOND)
    h.submit("three", h.prompt(8), n=3)
    assert home(h, "three") == SECOND
    h.step()
    h.detach(SECOND)
    assert isinstance(h.errors["three"], InvalidRequest)
    h.submit("two", h.prompt(8), n=2)
    h.run()
    h.check_answers()
    assert "two" in h.usage


def test_a_request_that_fits_nowhere_is_refused():
    h = two_executors(num_blocks=4)
    with pytest.raises(InvalidRequest):
        h.submit("large", h.prompt(60))
    assert h.manager.idle


def test_an_answer_does_not_depend_on_the_executor():
    h = two_executors()
    prompt = h.prompt(9)
    for name in ("a", "b"):
        h.submit(name, prompt, max_tokens=8, n=2, seed=5)
    h.run_and_check()
    assert admitted_on(h, "a") != admitted_on(h, "b")
    assert h.output["a", 1] == h.output["b", 1]


# Executors join


def test_an_executor_that_joins_takes_a_part_of_what_waits():
    h = Harness(num_blocks=8, block_size=4)
    for name in "abcd":
        h.submit(name, h.prompt(20), max_tokens=8)
    h.step()
    h.attach(SECOND)
    assert {home(h, name) for name in "bcd"} == {FIRST, SECOND}
    h.run_and_check()


def test_what_waits_in_a_line_that_does_not_move_goes_where_nobody_waits():
    h = two_executors(num_blocks=14, max_sequences=4)
    h.submit("long", h.prompt(30), max_tokens=25)
    h.submit("short", h.prompt(20), max_tokens=5, n=2)
    h.step()
    h.submit("stuck", h.prompt(30), max_tokens=4)  # more rows are in use on the other
    assert home(h, "stuck") == home(h, "long") == FIRST
    h.step()
    assert h.details(EventKind.WAITED, "stuck") == ["blocks"]
    h.run_and_check()
    assert admitted_on(h, "stuck") == [SECOND]
    assert h.handles(EventKind.FINISHED) == ["short", "stuck", "long"]


def test_another_block_size_is_refused():
    h = Harness(block_size=4)
    with pytest.raises(ValueError, match="8 tokens"):
        h.manager.attach_executor(SECOND, Capacity(64, 8, 200), h.now)
    h.submit("a", h.prompt(5))
    h.run_and_check()


@pytest.mark.parametrize("block_size", [2, 8])
def test_an_executor_may_come_back_with_another_block_size(block_size):
    h = Harness(block_size=4)
    prompt = h.prompt(30)
    h.pin("kept", prompt[:16])
    h.run()
    h.submit("a", prompt, max_tokens=12, n=2)
    h.submit("b", h.prompt(9), max_tokens=12, n=2, beam=BeamParams(3))
    for _ in range(3):
        h.step()
    h.detach()
    h.attach(capacity=Capacity(64, block_size, 200))
    h.run_and_check()
    h.submit("c", prompt, max_tokens=2)
    h.run_and_check()
    assert h.usage["c"].cached_tokens >= 16
    assert h.charged("default") == 16 // block_size


# Executors leave


def test_a_draining_executor_finishes_what_runs_and_gets_nothing_new():
    h = two_executors(num_blocks=12, max_sequences=2)
    for index in range(6):
        h.submit(index, h.prompt(12), max_tokens=12)
    h.step()
    running = set(h.replica.scheduler.running)
    h.drain(FIRST)
    assert set(h.replica.scheduler.running) == running
    assert not len(h.replica.scheduler.waiting)
    h.submit("new", h.prompt(5))
    assert home(h, "new") == SECOND
    while not h.replica.idle:
        h.step()
    h.detach(FIRST)
    h.run_and_check()
    assert {index for index in range(6) if FIRST in admitted_on(h, index)} == running
    assert not any(h.details(EventKind.PREEMPTED, index) for index in running)


def test_what_is_preempted_on_a_draining_executor_goes_on_elsewhere():
    h = Harness(num_blocks=12, block_size=4)
    for name in ("a", "b"):
        h.submit(name, h.prompt(12), max_tokens=28)
    h.step()
    h.attach(SECOND)
    h.drain(FIRST)
    h.run_and_check()
    assert admitted_on(h, "b") == [FIRST, SECOND]


def test_what_is_preempted_on_a_draining_executor_and_fits_nowhere_else_is_not_forgotten():
    h = Harness(num_blocks=24, block_size=4)
    h.submit("a", h.prompt(40), max_tokens=40)
    h.submit("b", h.prompt(20), max_tokens=30)
    h.step()
    h.attach(SECOND, Capacity(8, 4, 200))
    h.drain(FIRST)
    h.run()
    assert h.details(EventKind.PREEMPTED, "b")
    assert "a" in h.usage
    assert "b" in h.usage or "b" in h.errors


def test_the_last_executor_that_drains_still_finishes_what_runs():
    h = Harness(num_blocks=12, block_size=4)
    for name in ("a", "b"):
        h.submit(name, h.prompt(12), max_tokens=28)
    h.step()
    h.drain(FIRST)
    while not h.replica.idle:
        h.step()
    assert "a" in h.usage
    h.attach(SECOND)
    h.run_and_check()


def test_what_ran_on_a_lost_executor_goes_on_elsewhere_with_the_tokens_it_has():
    h = two_executors()
    for name in ("a", "b"):
        h.submit(name, h.prompt(10), max_tokens=12, n=2)
    for _ in range(5):
        h.step()
    before = {key: list(tokens) for key, tokens in h.output.items()}
    lost = home(h, "a")
    h.detach(lost)
    assert home(h, "a") == home(h, "b") != lost
    h.run_and_check()
    assert all(h.output[key][: len(tokens)] == tokens for key, tokens in before.items())


def test_requests_wait_while_there_is_no_executor():
    h = Harness(block_size=4)
    h.submit("before", h.prompt(10), max_tokens=6)
    h.step()
    h.detach()
    h.submit("meanwhile", h.prompt(10), max_tokens=6)
    assert h.manager.num_waiting == 2
    assert h.request("meanwhile").state is RequestState.WAITING
    h.attach(SECOND)
    h.run_and_check()
    assert h.handles(EventKind.ADMITTED) == ["before", "before", "meanwhile"]


def test_an_executor_that_comes_back_holds_nothing():
    h = Harness(block_size=4)
    prompt = h.prompt(20)
    h.submit("a", prompt, max_tokens=2)
    h.run()
    h.lose_and_return()
    h.submit("b", prompt, max_tokens=2)
    h.run_and_check()
    assert h.usage["b"].cached_tokens == 0


def test_the_last_executor_to_drain_finishes_what_has_begun():
    h = Harness(num_blocks=14, block_size=4, max_sequences=8, prefix_caching=False)
    for name in ("a", "b", "c"):
        h.submit(name, h.prompt(10), max_tokens=20)
    while not h.handles(EventKind.PREEMPTED):
        h.step()
    h.submit("new", h.prompt(10), max_tokens=4)
    h.take(h.manager.drain_executor(FIRST, h.now))
    for _ in range(200):
        h.step()
    assert set(h.usage) == {"a", "b", "c"}
    h.check_answers()
    assert h.replica.idle
    assert h.manager.num_waiting == 1, "what had not begun waits for the next executor"


def test_executors_about_as_fast_share_the_load():
    h = Harness(num_executors=2)
    for name, rate in (("executor-0", 1000.0), ("executor-1", 1100.0)):
        h.manager.replicas[name].memory.costs.speeds = Speeds(prefill_tokens_per_s=rate)
    for name in range(6):
        h.submit(name, h.prompt(10), max_tokens=20)
        h.step()
    assert [replica.num_requests for replica in h.manager.replicas.values()] == [3, 3]


def test_a_pin_computes_no_more_than_its_prompt_whatever_it_asks_for():
    h = Harness(num_blocks=16, block_size=4)
    h.submit("pin", h.prompt(12), max_tokens=0, n=3, pin=PinOrder("p", 100.0))
    h.run()
    assert h.usage["pin"].completion_tokens == 0
    assert h.manager.counters.peak_referenced_blocks == 3
