"""What a soak prints: JSON lines on standard output, a progress bar or readable failures on standard error."""

import json
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from google.protobuf.json_format import MessageToDict
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.soak.workload import Planned

_SECONDS_BETWEEN_LINES = 15.0
# Where everything is wrong, the first ones say enough.
_MOST_FAILURES_SHOWN = 50


class Report:
    """Collects failures and shows how far the soak has come."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self._console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._progress = Progress(
            TextColumn("{task.description:<12}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            # Standard output may go to a file while the bar is on the terminal.
            redirect_stdout=False,
            disable=not self._console.is_terminal,
        )
        self._tasks: dict[str, Any] = {}
        self._last_line = 0.0

    def bars(self) -> AbstractContextManager[object]:
        """While it is entered, a terminal shows progress bars below everything else."""
        return self._progress

    def emit(self, event: str, **fields: Any) -> None:
        """Prints one JSON line."""
        line = json.dumps({"event": event, **fields}, ensure_ascii=False)
        if sys.stdout.isatty() and self._console.is_terminal:
            # One terminal for both: above the bar.
            self._console.print(line, soft_wrap=True)
        else:
            print(line, flush=True)

    def progress(self, phase: str, done: int, total: int) -> None:
        """Moves the phase's bar; without a terminal, prints a line now and then."""
        if self._console.is_terminal:
            if phase not in self._tasks:
                self._tasks[phase] = self._progress.add_task(phase, total=total)
            self._progress.update(self._tasks[phase], completed=done)
        elif done == total or time.monotonic() - self._last_line > _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            self.emit("progress", phase=phase, done=done, total=total)

    def fail(self, where: str, problems: Sequence[str], planned: Planned | None = None) -> None:
        """Notes what is wrong, with the request that shows it."""
        for problem in problems:
            self.failures.append(f"{where}: {problem}")
            if len(self.failures) <= _MOST_FAILURES_SHOWN:
                request = {} if planned is None else {"request": MessageToDict(planned.request)}
                self.emit("failure", where=where, problem=problem, **request)

    def show_failures(self) -> None:
        """Lists them for a person."""
        for failure in self.failures[:_MOST_FAILURES_SHOWN]:
            print(f"FAILED {failure}", file=sys.stderr)
        if (more := len(self.failures) - _MOST_FAILURES_SHOWN) > 0:
            print(f"FAILED and {more} more", file=sys.stderr)
