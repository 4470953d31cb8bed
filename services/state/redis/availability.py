"""Whether Redis takes writes, as far as is known; one log line when that ends and one when it is so again."""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


class Availability:
    """Held by the connection, read by everybody.

    Attributes:
        available: it took the last write.
        reachable: it answers. Where it does but refuses writes (full, read-only), reading may go well.
        reason: why it is not available.
    """

    def __init__(self) -> None:
        self.available = True
        self.reachable = True
        self.reason = ""
        self._callbacks: list[Callable[[bool], None]] = []

    def on_change(self, callback: Callable[[bool], None]) -> None:
        """Calls back with each new value of `available`."""
        self._callbacks.append(callback)

    def lost(self, reason: str, *, reachable: bool) -> None:
        """A command failed."""
        was_available = self.available
        self.available, self.reachable, self.reason = False, reachable, reason
        if was_available:
            what = "refuses writes" if reachable else "is away"
            log.warning(f"state store {what}; serving continues", extra={"error": reason})
            self._tell()

    def restored(self) -> None:
        """It took a write."""
        was_available = self.available
        self.available, self.reachable, self.reason = True, True, ""
        if not was_available:
            log.info("state store is back")
            self._tell()

    def _tell(self) -> None:
        for callback in self._callbacks:
            try:
                callback(self.available)
            except Exception:  # it is the listener's failure, and must not end the watch over the store
                log.exception("could not tell of the state store")
