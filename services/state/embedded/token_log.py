"""Token logs within one process: they serve a client that lost its connection, not one whose gateway is gone."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from services.state.token_log import LogEntry, LoggedRequest, LogKey, TokenLogLimits

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Log:
    owner: str
    opening: bytes
    end: float
    entries: list[bytes] = field(default_factory=list)
    num_bytes: int = 0
    ended: bool = False


class EmbeddedTokenLog:
    """As `TokenLog` says. Logs are kept in the order they were written to last, which is the order they expire in."""

    def __init__(self, limits: TokenLogLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._logs: OrderedDict[LogKey, _Log] = OrderedDict()
        self._num_bytes = 0

    async def open(self, key: LogKey, owner: str, opening: bytes) -> None:
        self._drop(key)
        if len(opening) > self._limits.max_opening_bytes:
            log.warning("a request is too large for the token log and can't be resumed", extra={"bytes": len(opening)})
            return
        self._logs[key] = _Log(owner, opening, self._clock() + self._limits.seconds)
        self._num_bytes += len(opening)
        self._make_room()

    async def append(self, entries: Sequence[LogEntry]) -> set[LogKey]:
        lost = set()
        self._make_room()
        for entry in entries:
            kept = self._logs.get(entry.key)
            if kept is None:
                continue
            if kept.owner != entry.owner:
                lost.add(entry.key)
            else:
                self._add(kept, entry)
        self._make_room()
        return lost

    async def missing(self, keys: Sequence[LogKey]) -> set[LogKey]:
        return {key for key in keys if key not in self._logs}

    async def take_over(self, key: LogKey, owner: str) -> LoggedRequest | None:
        self._make_room()
        kept = self._logs.get(key)
        if kept is None:
            return None
        kept.owner = owner
        self._refresh(key, kept)
        return LoggedRequest(kept.opening, list(kept.entries), kept.ended)

    def _add(self, kept: _Log, entry: LogEntry) -> None:
        size = len(entry.data)
        if size:
            if kept.num_bytes + size > self._limits.max_bytes or len(kept.entries) >= self._limits.max_entries:
                log.warning("an answer is too long for the token log and can't be resumed any more")
                self._drop(entry.key)
                return
            kept.entries.append(entry.data)
            kept.num_bytes += size
            self._num_bytes += size
        kept.ended = kept.ended or entry.last
        self._refresh(entry.key, kept)

    def _refresh(self, key: LogKey, kept: _Log) -> None:
        kept.end = self._clock() + self._limits.seconds
        self._logs.move_to_end(key)

    def _make_room(self) -> None:
        """Drops logs that are too old, then those written to longest ago until the others fit."""
        now = self._clock()
        while self._logs:
            key, oldest = next(iter(self._logs.items()))
            fits = len(self._logs) <= self._limits.max_requests and self._num_bytes <= self._limits.max_total_bytes
            if fits and now < oldest.end:
                return
            self._drop(key)

    def _drop(self, key: LogKey) -> None:
        dropped = self._logs.pop(key, None)
        if dropped is not None:
            self._num_bytes -= len(dropped.opening) + dropped.num_bytes
