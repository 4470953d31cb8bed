"""Deadlines come in order, and those of requests that ended take no room."""

from __future__ import annotations

from kvmanager.deadlines import Deadlines


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
