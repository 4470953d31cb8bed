"""Deadlines come in order, and those of requests that ended take no room."""

from __future__ import annotations

from kvmanager.deadlines import Deadlines
from tests.kvmanager.harness import Harness


def test_the_earliest_comes_first_and_only_of_the_living() -> None:
    deadlines = Deadlines()
    alive = {"a", "b", "c"}
    for handle, deadline in (("a", 3.0), ("b", 1.0), ("c", 2.0)):
        deadlines.add(deadline, handle, alive)
    assert deadlines.next() == 1.0
    assert deadlines.due(0.5, alive) == []
    alive.remove("c")
    assert deadlines.due(3.0, alive) == ["b", "a"]
    assert deadlines.next() is None


def test_requests_that_ended_long_before_their_deadline_take_no_room() -> None:
    deadlines = Deadlines()
    alive: set[int] = set()
    for handle in range(10_000):
        alive.add(handle)
        deadlines.add(1e6 + handle, handle, alive)
        alive.remove(handle)
    assert len(deadlines) < 100


def test_a_deadline_does_not_hold_for_a_later_request_of_the_same_name() -> None:
    h = Harness()
    h.submit("a", h.prompt(4), max_tokens=2, deadline=5.0)
    h.submit("b", h.prompt(4), max_tokens=2, deadline=5.0)
    h.run_and_check()
    h.output.clear()
    h.reasons.clear()
    h.submit("a", h.prompt(4), max_tokens=20)
    h.submit("b", h.prompt(4), max_tokens=20, deadline=6.0)
    h.step()
    h.expire(5.0)
    assert not h.errors
    h.expire(6.0)
    assert list(h.errors) == ["b"]
    h.run()
    assert h.output["a", 0] == h.expected("a")
