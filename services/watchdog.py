"""Ends a process whose event loop is stuck, so that whoever supervises it starts it anew."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 1.0
LAST_WORD_SECONDS = 5.0
"""What the log gets: the thread that is stuck may hold its lock."""


class Watchdog:
    """A thread that looks whether an event loop turns, while this is entered.

    It counts its own looks in a row at which the loop had not turned since the one before, and no seconds: a process
    that was stopped, or a machine that slept, made none meanwhile.

    Args:
        seconds: time in which the loop has to turn once, in whole intervals.
        on_stuck: called on the thread, once.
        interval: seconds between two looks.
    """

    def __init__(self, seconds: float, on_stuck: Callable[[], None], interval: float = INTERVAL_SECONDS) -> None:
        self._loop = asyncio.get_running_loop()
        self._num_looks = max(1, round(seconds / interval))
        self._on_stuck = on_stuck
        self._interval = interval
        self._turned = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        num_missed = 0
        while True:
            self._turned.clear()
            self._loop.call_soon_threadsafe(self._turned.set)
            if self._stopped.wait(self._interval):
                return
            num_missed = 0 if self._turned.is_set() else num_missed + 1
            if num_missed >= self._num_looks:
                self._on_stuck()
                return


def break_off(exit_code: int) -> None:
    """Logs what each thread is at, and ends the process at once."""
    stacks = _stacks()
    # The lock of the log may be held by the thread that is stuck.
    telling = threading.Thread(target=lambda: log.critical("the event loop is stuck", extra={"stacks": stacks}))
    telling.daemon = True
    telling.start()
    telling.join(LAST_WORD_SECONDS)
    os._exit(exit_code)


def _stacks() -> dict[str, list[str]]:
    """Of each thread by name, the innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        f"{names.get(ident, 'unknown')} ({ident})": [line.strip() for line in traceback.format_stack(frame)]
        for ident, frame in sys._current_frames().items()
    }
