"""How far a process has come with what keeps it from serving: from its log to the bar on somebody's screen."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_EVENT = "progress"
# Who waits no longer than this needs no bar, and a log needs no more lines than these.
_QUIET_SECONDS = 1.0
_INTERVAL_SECONDS = 0.5


@dataclass(frozen=True)
class Progress:
    """Some of a known amount of work is done.

    Attributes:
        task: What is being done, for people.
        done: How much of `total`, in any unit.
    """

    task: str
    done: int
    total: int


class ProgressLog:
    """Writes progress into the log, now and then; nothing where it is all over in a moment.

    Args:
        clock: In seconds.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._next = clock() + _QUIET_SECONDS
        self._shown = False

    def __call__(self, task: str, done: int, total: int) -> None:
        """So much of a task is done."""
        now = self._clock()
        if now >= self._next or (self._shown and done == total):
            self._shown = True
            self._next = now + _INTERVAL_SECONDS
            self._log.info(_EVENT, extra={"task": task, "done": done, "total": total})


def read_progress(line: str) -> Progress | None:
    """The progress that a line of a process's log tells of, whatever stands before; None where it is another event."""
    if f'"{_EVENT}"' not in line:
        return None
    try:
        entry = json.loads(line[line.index("{") :])
        if entry["event"] == _EVENT:
            return Progress(str(entry["task"]), int(entry["done"]), int(entry["total"]))
    except (ValueError, KeyError, TypeError):
        pass
    return None


@contextmanager
def progress_bar(title: str, console: Console) -> Iterator[Callable[[Progress], None] | None]:
    """A line on the screen that moves until the block ends, with a bar where there is progress to show.

    Yields:
        What shows progress; None where nobody looks.
    """
    if not console.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    bar_columns = (BarColumn(), TaskProgressColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        shown = bar.add_task(title, total=None)

        def show(progress: Progress) -> None:
            bar.columns = (*columns, *bar_columns)
            bar.update(shown, description=progress.task, completed=progress.done, total=progress.total)

        yield show
