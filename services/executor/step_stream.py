"""One call of Execute: what becomes of its steps, and under which epoch they come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from executor.step import BatchRefused


class StepStream:
    """Takes outcomes from the thread of steps to the event loop that makes this.

    Args:
        on_epoch: told, on the event loop, of each epoch that its steps come under.

    Attributes:
        outcomes: of its steps, in order; an exception ends the stream, None says that there are no more steps.
        epoch: of its latest step; None before the first.
    """

    def __init__(self, on_epoch: Callable[[int], None]) -> None:
        self.outcomes: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self.epoch: int | None = None
        self._on_epoch = on_epoch
        self._loop = asyncio.get_running_loop()

    def deliver(self, outcome: bytes | Exception | None) -> None:
        """On any thread."""
        with suppress(RuntimeError):  # the loop is closed, at the end of the process
            self._loop.call_soon_threadsafe(self.outcomes.put_nowait, outcome)

    def take_on(self, epoch: int) -> None:
        """A step of this epoch has been launched. On any thread."""
        if epoch != self.epoch:
            self.epoch = epoch
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._on_epoch, epoch)

    def end(self, newer_epoch: int) -> None:
        """Somebody else leads."""
        own = "the epoch of this stream" if self.epoch is None else f"epoch {self.epoch}"
        self.outcomes.put_nowait(BatchRefused(f"{own} is older than {newer_epoch}"))
