"""When requests have to be over."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Hashable
from itertools import count


class Deadlines:
    """The earliest deadline first. Requests that ended by themselves are skipped, and swept out as others are added."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Hashable]] = []
        self._ties = count()  # handles need not be comparable

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, deadline: float, handle: Hashable, alive: Collection[Hashable]) -> None:
        """Takes note of a deadline; forgets those of requests that are not alive once they are the larger part."""
        if len(self._heap) > 2 * len(alive) + 64:
            self._heap = [entry for entry in self._heap if entry[2] in alive]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (deadline, next(self._ties), handle))

    def next(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def due(self, now: float, alive: Collection[Hashable]) -> list[Hashable]:
        """Takes out and returns the living handles whose deadline has come."""
        handles = []
        while self._heap and self._heap[0][0] <= now:
            handle = heapq.heappop(self._heap)[2]
            if handle in alive:
                handles.append(handle)
        return handles
