"""Streams that wait until it is their turn to send."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.pacing import response_interval


class Pacer:
    """Turns have the same bounds for all streams with the same interval, so that one timer wakes all that wait.

    Args:
        num_streams: How many there are now.
        responses_per_second: As of `gateway.pacing.response_interval`.
    """

    def __init__(self, num_streams: Callable[[], int], responses_per_second: float) -> None:
        self._num_streams = num_streams
        self._responses_per_second = responses_per_second
        self._waiting: dict[float, list[Callable[[], None]]] = {}

    def end_of_turn(self, now: float, wanted: float | None) -> float:
        """Until when a stream that sends now is to send nothing more.

        Args:
            now: As of the event loop's clock, in seconds.
            wanted: Seconds between two responses that the client asked for, if it did.
        """
        interval = wanted
        if interval is None:
            interval = response_interval(self._num_streams(), self._responses_per_second)
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
