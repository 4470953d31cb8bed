"""How many tokens prompts and answers have: one number, or a distribution."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from services.config import ConfigError

Draw = Callable[[random.Random], float]

_FORMS = "N, LOW-HIGH, normal:MEAN:DEVIATION, lognormal:MEAN:DEVIATION or exponential:MEAN"


@dataclass(frozen=True)
class Lengths:
    """A distribution of lengths.

    Attributes:
        text: As the user wrote it.
    """

    text: str
    _draw: Draw = field(repr=False, compare=False)

    def draw(self, rng: random.Random) -> int:
        """One length, at least 1."""
        return max(1, round(self._draw(rng)))


def parse_lengths(name: str, text: str) -> Lengths:
    """A distribution from what the user wrote.

    Raises:
        ConfigError: Naming the option.
    """
    kind, *numbers = text.split(":")
    try:
        return Lengths(text, _draw_of(kind, [float(number) for number in numbers]))
    except ValueError as error:
        raise ConfigError(f"{name}: not a length such as {_FORMS}: {text!r}") from error


def _draw_of(kind: str, numbers: list[float]) -> Draw:
    """Raises ValueError where it is none."""
    if not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise ValueError(numbers)
    match kind, numbers:
        case "normal", [mean, deviation]:
            return lambda rng: rng.gauss(mean, deviation)
        case "lognormal", [mean, deviation]:
            return _lognormal(mean, deviation)
        case "exponential", [mean]:
            return lambda rng: rng.expovariate(1 / mean) if mean else 0.0
        case _, []:
            low, dash, high = kind.partition("-")
            first = int(low)
            last = int(high) if dash else first
            if not 1 <= first <= last:
                raise ValueError(kind)
            return lambda rng: rng.randint(first, last)
    raise ValueError(kind)


def _lognormal(mean: float, deviation: float) -> Draw:
    """With this mean and deviation of the lengths themselves, not of their logarithms."""
    if not mean:
        raise ValueError(mean)
    variance = math.log(1 + (deviation / mean) ** 2)
    return lambda rng: rng.lognormvariate(math.log(mean) - variance / 2, math.sqrt(variance))
