"""How fast this executor is, kept current by its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from executor.step import Speeds
from executor.timer import Span, Timer

SpeedName = Literal["prefill_tokens_per_s", "swap_out_blocks_per_s", "swap_in_blocks_per_s", "copy_blocks_per_s"]

# Weight of the latest step in the mean; more while there have been few.
_WEIGHT = 0.2
# Smaller changes are not reported.
_NOTICEABLE = 0.2

# A step tells the speed of prefill if it has at least so many tokens, nearly all of them in prefill chunks.
_MIN_PREFILL_TOKENS = 64
_MIN_PREFILL_SHARE = 0.9


def is_prefill(num_tokens: Sequence[int]) -> bool:
    """Whether a step whose rows compute so many tokens each says how fast prefill is."""
    total = sum(num_tokens)
    if total < _MIN_PREFILL_TOKENS or total == len(num_tokens):
        return False
    return sum(count for count in num_tokens if count > 1) >= _MIN_PREFILL_SHARE * total


class SpeedMeter:
    """Exponentially weighted means of what the steps show.

    Args:
        measured: at start; counts as reported.
    """

    def __init__(self, measured: Speeds, timer: Timer) -> None:
        self._timer = timer
        self._current: dict[str, float] = asdict(measured)
        self._num_samples = {name: 1 if speed else 0 for name, speed in self._current.items()}
        self._reported = measured
        self._under_way: list[_Sample] = []

    @property
    def reported(self) -> Speeds:
        """As reported last: what is measured since differs by a fifth at most."""
        return self._reported

    def add(self, name: SpeedName, amount: int, span: Span) -> None:
        """A step has done so much in that span; it may still be under way."""
        self._under_way.append(_Sample(name, amount, span))

    def report(self) -> Speeds | None:
        """All speeds, if one has changed noticeably since the last report."""
        if not self._under_way:
            return None
        waiting = []
        for sample in self._under_way:
            if self._timer.is_over(sample.span):
                self._take(sample)
            else:
                waiting.append(sample)
        self._under_way = waiting
        if not any(self._changed(name, speed) for name, speed in asdict(self._reported).items()):
            return None
        self._reported = Speeds(**self._current)
        return self._reported

    def _take(self, sample: _Sample) -> None:
        speed = per_second(sample.amount, self._timer.seconds(sample.span))
        if not speed:
            return
        self._num_samples[sample.name] += 1
        weight = max(_WEIGHT, 1 / self._num_samples[sample.name])
        self._current[sample.name] += weight * (speed - self._current[sample.name])

    def _changed(self, name: str, reported: float) -> bool:
        return abs(self._current[name] - reported) > _NOTICEABLE * reported


@dataclass(frozen=True, slots=True)
class _Sample:
    name: SpeedName
    amount: int
    span: Span


def per_second(amount: int, seconds: float) -> float:
    """0, unknown, where the clock has not moved."""
    return amount / seconds if seconds > 0 else 0.0
