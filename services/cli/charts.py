"""Charts made of characters, for terminals."""

from __future__ import annotations

from collections.abc import Sequence

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int, highest: float | None = None) -> str:
    """The last values as one line of columns, right-aligned.

    Args:
        highest: Value of a full column; the highest one of the values when absent.
    """
    (line,) = columns(values[-width:], 1, highest)
    return line.rjust(width)


def columns(values: Sequence[float], height: int, highest: float | None = None) -> list[str]:
    """A column for each value, as lines from top to bottom. What is more than nothing is seen.

    Args:
        height: In lines.
        highest: As of `sparkline`.
    """
    top = max(values, default=0.0) if highest is None else highest
    levels = [_level(value, top, 8 * height) for value in values]
    return ["".join(_EIGHTHS[min(max(level - 8 * row, 0), 8)] for level in levels) for row in reversed(range(height))]


def parts_of(width: int, parts: Sequence[float], whole: float) -> list[int]:
    """Characters of a bar for each of some parts of a whole; what is left of the width is the rest.

    A part that is more than nothing has a character, as long as there are any.
    """
    if whole <= 0:
        return [0] * len(parts)
    sizes = [max(round(width * part / whole), 1 if part > 0 else 0) for part in parts]
    while sum(sizes) > width:
        sizes[sizes.index(max(sizes))] -= 1
    return sizes


def counts_in_bins(values: Sequence[float], bins: int, highest: float) -> list[int]:
    """How many values are in each of so many equal parts from 0 to the highest; those above it are in the last one."""
    counts = [0] * bins
    for value in values:
        counts[min(int(value / highest * bins), bins - 1) if highest > 0 else 0] += 1
    return counts


def _level(value: float, top: float, levels: int) -> int:
    if value <= 0 or top <= 0:
        return 0
    return min(max(round(levels * value / top), 1), levels)
