"""The thread that steps run on, one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

Outcome: TypeAlias = "bytes | Exception | None"
"""What became of one step: its result as bytes, or what it raised. None: there are no more steps of this stream."""


class StepThread:
    """Runs steps in the order in which they come: the next one starts the moment the one before is done.

    Steps come and results go as bytes, so that the event loop, which shares Python's lock with this thread, has as
    little to do as possible.

    Args:
        run: one step.
    """

    def __init__(self, run: Callable[[bytes], bytes]) -> None:
        self._run = run
        self._line: SimpleQueue[tuple[bytes | None, Callable[[Outcome], None]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="step", daemon=True)
        self._thread.start()

    def submit(self, step: bytes, deliver: Callable[[Outcome], None]) -> None:
        """Puts a step in line. `deliver` is called on the thread with what became of it."""
        self._line.put((step, deliver))

    def end_stream(self, deliver: Callable[[Outcome], None]) -> None:
        """Calls `deliver` with None when all steps before are done."""
        self._line.put((None, deliver))

    def close(self) -> None:
        """Returns when the steps in line are done."""
        self._line.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (item := self._line.get()) is not None:
            step, deliver = item
            deliver(None if step is None else self._outcome(step))

    def _outcome(self, step: bytes) -> bytes | Exception:
        try:
            return self._run(step)
        except Exception as error:  # told to whoever sent the step
            return error
