"""How long a call's work takes on a device, with nothing of it left in the caches."""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch

Call = Callable[[], object]

# Read before each measurement: several times what the caches hold, and long enough that the call's kernels are queued
# before the first of them can start. (Written, it would leave the caches full of what has to be written back first.)
_FLUSHED_NUMBERS = 1 << 28


class Stopwatch(ABC):
    """Measures seconds."""

    @abstractmethod
    def seconds(self, call: Call) -> float:
        """Of one call, its data not in a cache."""

    @abstractmethod
    def repeatable(self, call: Call) -> Call:
        """The same work with as little of Python and the driver in between as can be had; `call` has run once."""

    def in_turns(self, calls: Mapping[str, Call], rounds: int) -> dict[str, list[float]]:
        """Seconds of each round, by side; the sides take turns in an order that turns too."""
        seconds: dict[str, list[float]] = {side: [] for side in calls}
        sides = list(calls)
        for number in range(rounds):
            for side in sides[number % len(sides) :] + sides[: number % len(sides)]:
                seconds[side].append(self.seconds(calls[side]))
        return seconds


class EventStopwatch(Stopwatch):
    """On a GPU: events before and after the work in its stream."""

    def __init__(self, device: torch.device) -> None:
        self._flushing = torch.zeros(_FLUSHED_NUMBERS, dtype=torch.float32, device=device)

    def seconds(self, call: Call) -> float:
        start, end = _event(), _event()
        self._flushing.sum()
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000

    def repeatable(self, call: Call) -> Call:
        """As a CUDA graph."""
        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return graph.replay


class WallStopwatch(Stopwatch):
    """On a CPU, where all is done when a call returns. The caches are as they are."""

    def seconds(self, call: Call) -> float:
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    def repeatable(self, call: Call) -> Call:
        return call


def milliseconds(seconds: list[float]) -> float:
    """Their median."""
    return round(1000 * statistics.median(seconds), 4)


def ratio(seconds: list[float], others: list[float]) -> float:
    """Median of the rounds' ratios."""
    return round(statistics.median(mine / theirs for mine, theirs in zip(seconds, others, strict=True)), 3)


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch has no types here
