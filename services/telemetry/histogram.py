"""Observations by size."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Exemplar(NamedTuple):
    """One observation, and the trace that shows how it came about. The time is seconds since 1970."""

    trace_id: str
    value: float
    time: float


class Bucket(NamedTuple):
    """Observations up to a bound: all of them, those of smaller bounds among them."""

    bound: float
    observations: int
    exemplar: Exemplar | None


class Histogram:
    """Counts observations between bounds. An observation takes a few tenths of a microsecond; not thread-safe.

    Unlike the client library's it takes many equal observations at once, and has no name: one histogram may be shown
    under several.

    Args:
        bounds: Greatest value of each bucket, ascending; what is greater than the last one is counted, too.

    Attributes:
        total: Sum of all observations.
    """

    __slots__ = ("_bounds", "_counts", "_exemplars", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._exemplars: dict[int, Exemplar] = {}
        self.total = 0.0

    def observe(self, value: float, count: int = 1, exemplar: Exemplar | None = None) -> None:
        """Takes an observation in, `count` times."""
        index = bisect_left(self._bounds, value)
        self._counts[index] += count
        self.total += value * count
        if exemplar is not None:
            self._exemplars[index] = exemplar

    def add_counts(self, counts: Sequence[int], total: float) -> None:
        """Takes in what another histogram with these bounds has counted."""
        self._counts = [own + more for own, more in zip(self._counts, counts, strict=True)]
        self.total += total

    @property
    def counts(self) -> Sequence[int]:
        """Observations in each bucket alone, and above the last bound."""
        return self._counts

    def buckets(self) -> Iterator[Bucket]:
        """By bound; the last one is infinity."""
        count = 0
        for index, bound in enumerate((*self._bounds, float("inf"))):
            count += self._counts[index]
            yield Bucket(bound, count, self._exemplars.get(index))
