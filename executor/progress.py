"""How whoever waits for an executor learns how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Told of a task, how much of it is done, and how much there is in all, in any unit; often."""


def tell_nobody(task: str, done: int, total: int) -> None:
    """Progress where nobody waits."""
