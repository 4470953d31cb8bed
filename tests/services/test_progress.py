"""Progress on its way from a process's log to the screen."""

import io
import json
import logging

import pytest
from rich.console import Console

from services.process import JsonFormatter
from services.progress import Progress, ProgressLog, progress_bar, read_progress


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log() -> logging.Logger:
    return logging.getLogger("tests.progress")


def test_what_is_over_in_a_moment_is_not_logged(
    clock: Clock, log: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        progress = ProgressLog(log, clock)
        for done in range(1, 1001):
            clock.now += 0.0009
            progress("Reading weights", done, 1000)
    assert not caplog.records


def test_what_takes_longer_is_logged_now_and_then(
    clock: Clock, log: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        progress = ProgressLog(log, clock)
        for done in range(1, 1001):
            clock.now += 0.01003
            progress("Converting weights", done, 1000)
    lines = [JsonFormatter("executor").format(record) for record in caplog.records]
    assert 15 <= len(lines) <= 20
    read = [read_progress(f"executor: {line}") for line in lines]
    assert all(each is not None and each.task == "Converting weights" and each.total == 1000 for each in read)
    done = [each.done for each in read if each is not None]
    assert done == sorted(done)
    assert 95 <= done[0] <= 105  # a second
    assert done[-1] == 1000


@pytest.mark.parametrize(
    "line",
    [
        "executor: Traceback (most recent call last):",
        json.dumps({"event": "model loaded", "seconds": 1.0}),
        json.dumps({"event": "model loaded", "model": "progress"}),
        'executor: {"event": "progress"',
        json.dumps({"event": "progress", "task": "Reading weights"}),
        json.dumps({"event": "progress", "task": "Reading weights", "done": "some", "total": 3}),
        '"progress"',
    ],
)
def test_other_lines_are_not_progress(line: str) -> None:
    assert read_progress(line) is None


def test_a_terminal_shows_a_bar_and_clears_it() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    with progress_bar("Starting", console) as show:
        assert show is not None
        show(Progress("Converting weights", 42, 100))
    assert "Starting" in screen.getvalue()
    assert "Converting weights" in screen.getvalue()
    assert "42%" in screen.getvalue()


def test_where_nobody_looks_progress_stays_in_the_log() -> None:
    screen = io.StringIO()
    with progress_bar("Starting", Console(file=screen)) as show:
        assert show is None
    assert not screen.getvalue()
