"""What is checked, and whether it held."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from benchmarks.gpu.lines import emit, tell

Item = TypeVar("Item")


class Checks:
    """Prints a line for each check and keeps what failed."""

    def __init__(self) -> None:
        self.num_checks = 0
        self.failed: list[str] = []
        self.skipped: list[str] = []

    def measure(self, name: str, limit: float, error: Callable[[], float], **facts: Any) -> None:
        """Holds where `error` returns at most `limit`; what it raises is a failure too."""
        self.num_checks += 1
        line: dict[str, Any] = {"check": name, **facts, "limit": limit}
        try:
            line["error"] = value = error()
            line["ok"] = value <= limit
        except Exception as raised:
            tell(traceback.format_exc())
            line |= {"ok": False, "raised": f"{type(raised).__name__}: {raised}"}
        emit(line)
        if not line["ok"]:
            self.failed.append(f"{name}: {facts}" if facts else name)

    def holds(self, name: str, condition: Callable[[], bool], **facts: Any) -> None:
        """Holds where `condition` returns True."""
        self.measure(name, 0.0, lambda: 0.0 if condition() else 1.0, **facts)

    def skip(self, name: str, why: str) -> None:
        emit({"check": name, "skipped": why})
        self.skipped.append(name)

    def summary(self) -> dict[str, Any]:
        return {"checks": self.num_checks, "failed": self.failed, "skipped": self.skipped}


def within(
    seconds: float, what: str, items: Sequence[Item], clock: Callable[[], float] = time.monotonic
) -> Iterator[Item]:
    """The items until the time is over; says how many were left out."""
    deadline = clock() + seconds
    for done, item in enumerate(items):
        if clock() > deadline:
            emit({"part": what, "left_out": len(items) - done, "why": f"the {seconds:g} s for it were over"})
            return
        yield item
