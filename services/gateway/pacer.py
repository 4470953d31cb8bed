"""Whose turn it is to send, of all streams of a gateway."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from gateway.pacing import response_interval


@dataclass(frozen=True, slots=True)
class Pace:
    """What a request wants.

    Attributes:
        interval: Seconds between two responses that the client asked for; None: as many requests as run decide it.
        looked_through: Its text is looked through for stop strings, and what is computed beyond one is lost: its tokens
            never wait.
    """

    interval: float | None = None
    looked_through: bool = False


class Pacer:
    """Turns have the same bounds for all streams with the same interval, so that one timer wakes all that wait.

    Args:
        responses_per_second: As of `gateway.pacing.response_interval`.
    """

    def __init__(self, responses_per_second: float) -> None:
        self._responses_per_second = responses_per_second
        self._streams: Counter[Pace] = Counter()
        self._waiting: dict[float, list[Callable[[], None]]] = {}

    def join(self, pace: Pace) -> None:
        """There is one more stream."""
        self._streams[pace] += 1

    def leave(self, pace: Pace) -> None:
        """There is one less."""
        self._streams[pace] -= 1
        if not self._streams[pace]:
            del self._streams[pace]

    @property
    def shortest_interval(self) -> float:
        """Seconds for which all streams' tokens may be kept back before they get here."""
        return min((self._interval(pace) for pace in self._streams), default=0.0)

    def _interval(self, pace: Pace) -> float:
        if pace.looked_through:
            return 0.0
        if pace.interval is not None:
            return pace.interval
        return response_interval(self._streams.total(), self._responses_per_second)

    def end_of_turn(self, now: float, pace: Pace) -> float:
        """Until when a stream that sends now, by the event loop's clock, is to send nothing more."""
        interval = self._interval(pace)
        return (now // interval + 1) * interval if interval else now

    def call_at(self, time: float, wake: Callable[[], None]) -> None:
        """Calls `wake` at the end of a turn."""
        waiting = self._waiting.get(time)
        if waiting is None:
            waiting = self._waiting[time] = []
            asyncio.get_running_loop().call_at(time, self._wake, time)
        waiting.append(wake)

    def _wake(self, time: float) -> None:
        for wake in self._waiting.pop(time):
            wake()
