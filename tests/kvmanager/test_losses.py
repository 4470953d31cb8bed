"""Executors that are lost cost time, but no token; and a request that is what breaks them is found out."""

from __future__ import annotations

import pytest

from kvmanager.capacity import Capacity
from kvmanager.errors import ExecutorFailed
from kvmanager.events import EventKind
from kvmanager.manager import MAX_LOSSES
from kvmanager.request import FinishReason
from kvmanager.scheduler import SUSPECT_LOSSES
from tests.kvmanager.harness import Harness


@pytest.mark.parametrize("prompt_length", [8, 9])
def test_an_executor_lost_between_a_fork_and_its_first_tokens(prompt_length):
    h = Harness(block_size=4)
    h.submit("a", h.prompt(prompt_length), max_tokens=5, n=3)
    h.schedule()
    h.schedule()
    h.detach()
    h.attach()
    h.run()
    h.check_answers()
    assert h.usage["a"].completion_tokens == 15


def test_an_executor_that_is_lost_costs_time_but_no_token():
    h = Harness(block_size=4)
    h.submit("a", h.prompt(10), max_tokens=12, n=2)
    h.submit("b", h.prompt(40), max_tokens=5)
    for lost_after in (1, 3, 2):
        for _ in range(lost_after):
            h.step()
        h.detach()
        assert h.schedule() is None
        h.attach()
        h.manager.check_integrity()
    h.run()
    h.check_answers()
    assert len(h.usage) == 2


def test_a_smaller_executor_ends_what_is_too_long_for_it_already():
    h = Harness(num_blocks=16, block_size=4, max_sequences=4)
    h.submit("long", h.prompt(8), max_tokens=0, n=2)
    h.submit("short", h.prompt(8), max_tokens=4)
    for _ in range(12):
        h.step()
    before = len(h.output["long", 0])
    h.detach()
    h.attach(capacity=Capacity(6, 4, 200))
    assert h.reasons["long", 0] is FinishReason.LENGTH
    assert h.usage["long"].completion_tokens == 2 * before
    h.run()
    assert h.output["short", 0] == h.expected("short")


def test_a_request_that_breaks_every_executor_is_given_up():
    h = Harness(block_size=4, max_sequences=4)
    h.submit("broken", h.prompt(10), max_tokens=12)
    for _ in range(MAX_LOSSES):
        assert "broken" not in h.errors
        h.schedule()
        h.detach()
        h.attach()
    assert isinstance(h.errors["broken"], ExecutorFailed)
    assert h.schedule() is None


def test_a_request_that_breaks_every_executor_takes_nobody_else_with_it():
    h = Harness(block_size=4, max_sequences=8)
    for name in ("before", "broken", "after"):
        h.submit(name, h.prompt(10), max_tokens=6)
    broken = h.manager._requests["broken"].sequences[0].sequence_id
    for _ in range(40):
        batch = h.schedule()
        if batch is None and not h.oracle.pending:
            break
        if any(broken in step.row_sequence_ids for step in h.oracle.pending):
            h.detach()
            h.attach()
        elif h.oracle.pending:
            h.result()
    assert isinstance(h.errors["broken"], ExecutorFailed)
    assert set(h.usage) == {"before", "after"}
    for name in ("before", "after"):
        assert h.details(EventKind.PREEMPTED, name) == ["executor lost"] * SUSPECT_LOSSES
    h.check_answers()


def suspected() -> Harness:
    """A request that runs alone, because two executors were lost under it, and one that waits."""
    h = Harness(block_size=4, max_batched_tokens=16, max_sequences=8)
    h.submit("suspect", h.prompt(60), max_tokens=20)
    for _ in range(SUSPECT_LOSSES):
        h.step()
        h.lose_and_return()
    h.submit("other", h.prompt(5), max_tokens=4)
    h.step()
    return h


def test_a_request_that_may_be_what_breaks_executors_runs_alone():
    h = suspected()
    while not h.output:
        assert list(h.replica.scheduler.running) == ["suspect"]
        h.step()
    h.run_and_check()


def test_once_it_has_a_token_it_has_company_again():
    h = suspected()
    while not h.output:
        h.step()
    for _ in range(2):
        h.step()
    assert list(h.replica.scheduler.running) == ["suspect", "other"]
    h.run_and_check()


def test_a_request_that_gets_tokens_in_between_is_not():
    h = Harness(block_size=4)
    h.submit("a", h.prompt(10), max_tokens=3 * MAX_LOSSES)
    for _ in range(2 * MAX_LOSSES):
        h.step()
        h.detach()
        h.attach()
    h.run()
    h.check_answers()
    assert "a" in h.usage
