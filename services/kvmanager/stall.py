"""Whether steps go on while there is work."""

from __future__ import annotations


class Stall:
    """Counts looks instead of reading a clock, so that a pause of this process is not taken for a stall.

    Args:
        interval: seconds between two looks.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._num_events = -1
        self._num_looks = 0

    def look(self, num_events: int, has_work: bool, bound: float) -> bool:
        """Whether nothing has happened for more than `bound` seconds although there is work.

        Args:
            num_events: steps that were sent, and results that came, so far.
        """
        if num_events != self._num_events or not has_work:
            self._num_events = num_events
            self._num_looks = 0
            return False
        self._num_looks += 1
        return self._num_looks * self._interval > bound
