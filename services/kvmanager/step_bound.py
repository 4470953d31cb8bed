"""How long a step may take before its executor counts as lost."""

from __future__ import annotations

from collections import deque

FACTOR = 10.0
"""A step may take so many times as long as can be expected from those before."""

FIRST_FACTOR = 6.0
"""So many times the least patience is given before an executor's first result: kernels are compiled and memory is
touched for the first time."""

NUM_RECENT = 32


class StepBound:
    """Watches the steps that are under way on one executor.

    A step's time begins when it is sent, or when the one before it is done. What can be expected of it is as long as
    nearly all recent steps took at most, and its tokens over the measured prefill speed. Each time that this was too
    little it is doubled, until a result comes: whatever slows the steps down, in the end they get the time they need.

    Times are seconds on one monotonic clock of the caller's.

    Args:
        patience: least seconds that any step gets.
    """

    def __init__(self, patience: float) -> None:
        self.prefill_tokens_per_s = 0.0
        self._patience = patience
        self._recent: deque[float] = deque(maxlen=NUM_RECENT)
        self._under_way: deque[int] = deque()
        self._since = 0.0
        self._num_lost = 0

    @property
    def seconds(self) -> float:
        """What the oldest step under way gets, or one without tokens where none is."""
        return self._bound() * 2.0**self._num_lost

    def _bound(self) -> float:
        if not self._recent:
            return self._patience * FIRST_FACTOR
        num_tokens = self._under_way[0] if self._under_way else 0
        # One slow step in ten is passed over, so that a pause does not count for long.
        expected = sorted(self._recent)[(len(self._recent) * 9 - 1) // 10]
        if self.prefill_tokens_per_s > 0:
            expected += num_tokens / self.prefill_tokens_per_s
        return max(self._patience, FACTOR * expected)

    def connected(self) -> None:
        """Nothing is under way. What is known of its steps stays."""
        self._under_way.clear()

    def sent(self, num_tokens: int, now: float) -> None:
        """A step is about to be sent."""
        if not self._under_way:
            self._since = now
        self._under_way.append(num_tokens)

    def done(self, duration: float, now: float) -> None:
        """The result of the oldest step is there, which took so many seconds."""
        if self._under_way:
            self._under_way.popleft()
        self._recent.append(duration)
        self._num_lost = 0
        self._since = now

    def lost(self) -> None:
        """The oldest step was given up."""
        self._num_lost += 1

    def forgive(self, lag: float, now: float) -> None:
        """For so many seconds until now, nobody here could have taken a result in."""
        self._since = min(self._since + lag, now)

    def waited(self, now: float) -> float:
        """For the oldest step under way; 0 where there is none."""
        return now - self._since if self._under_way else 0.0

    def is_over(self, now: float) -> bool:
        """Its result has not come in time."""
        return self.waited(now) > self.seconds
