"""How a stack's counters have changed in the last minutes."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from octavo.v1 import memory_pb2
from octavo.v1 import monitoring_pb2 as pb

_SECONDS = 300.0
# Rates as numbers are over so long: one step of a large batch takes a good part of a second.
_RATE_SECONDS = 5.0

Counter = Callable[[memory_pb2.MemoryCounters], float]


class History:
    """What was seen, oldest first, for five minutes."""

    def __init__(self) -> None:
        self._seen: deque[pb.Status] = deque()

    def add(self, statuses: Iterable[pb.Status]) -> None:
        """Takes in what is newer than the newest that is here."""
        for status in statuses:
            if not self._seen or _time(status) > _time(self._seen[-1]):
                self._seen.append(status)
        while self._seen and _time(self._seen[-1]) - _time(self._seen[0]) > _SECONDS:
            self._seen.popleft()

    @property
    def seconds(self) -> float:
        """How far back it goes."""
        return _time(self._seen[-1]) - _time(self._seen[0]) if self._seen else 0.0

    def rates(self, counter: Counter) -> list[float]:
        """A counter's growth per second, from each look to the next."""
        return [_rate(before, after, counter) for before, after in itertools.pairwise(self._seen)]

    def rate(self, counter: Counter) -> float | None:
        """A counter's growth per second just now; None where that is not known yet."""
        if len(self._seen) < 2:
            return None
        now = self._seen[-1]
        recent = [each for each in self._seen if _time(now) - _time(each) <= _RATE_SECONDS]
        before = recent[0] if len(recent) > 1 else self._seen[-2]
        return _rate(before, now, counter)

    def share(self, part: Counter, whole: Counter) -> float | None:
        """One counter's growth over another one's in these minutes, or ever where that has not grown; None: never."""
        if not self._seen:
            return None
        first, last = self._seen[0].counters, self._seen[-1].counters
        grown = whole(last) - whole(first)
        if grown > 0 and part(last) >= part(first):
            return (part(last) - part(first)) / grown
        return part(last) / whole(last) if whole(last) else None


def averages(values: Sequence[float], count: int) -> list[float]:
    """The values as at most so many, each the mean of as many neighbours; the newest are the last."""
    size = -(-len(values) // count) if count else 1
    if size <= 1:
        return list(values)
    start = len(values) % size
    groups = [values[:start]] if start else []
    groups += [values[place : place + size] for place in range(start, len(values), size)]
    return [sum(group) / len(group) for group in groups]


def _rate(before: pb.Status, after: pb.Status, counter: Counter) -> float:
    """0 where a counter began anew."""
    seconds = _time(after) - _time(before)
    return max(0.0, counter(after.counters) - counter(before.counters)) / seconds if seconds > 0 else 0.0


def _time(status: pb.Status) -> float:
    return status.time.seconds + status.time.nanos / 1e9
