"""What running requests are answered, noted in the state store for the gateway that has to go on with them.

No stream waits for it. A stream says that it has something new; now and then whatever is new of all of them is written
together, one round after the other. What is lost with this process before it was written is computed again, since it is
a function of what was noted first.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from octavo.v1 import kvmanager_pb2
from services.gateway.received import ReceivedSequence, Update
from services.gateway.record_codec import decode_tokens, encode_tokens
from services.state.store import StateStore, StateUnavailable
from services.state.token_log import LogEntry, LoggedRequest, LogKey

log = logging.getLogger(__name__)

ROUND_SECONDS = 0.2
"""Between two rounds. Tokens of so much time are computed again where a gateway is lost."""

RETRY_SECONDS = 1.0
"""After a round that failed."""

LOOK_ROUNDS = 10
"""So many rounds from one look whether all logs are still there to the next: the store may have lost them."""

MAX_ENDED_LOGS = 1000
"""Requests that have ended and whose last words wait for a store that is away."""


@dataclass(frozen=True, slots=True)
class LoggedAnswer:
    """What is known of a request that somebody began.

    Attributes:
        opening: What it takes to submit it again.
        updates: What it has been answered; there may be repeats.
        end: How it ended, if it has.
        owner: Of what will be written from here on.
        in_store: The store knows as much, and knows the owner.
    """

    opening: bytes
    updates: list[Update]
    end: kvmanager_pb2.RequestEnd | None
    owner: str
    in_store: bool


class RequestLog:
    """One request's log, as far as this gateway writes it.

    Args:
        key: The request's name.
        opening: What it takes to submit it again.
        sequences: What it has; read when it is written.
        dirty: Where it enters itself when there is something new.
        on_lost: Called when somebody else has taken the request over.
        owner: Of what is written.

    Attributes:
        opened: Its first record is written.
        closed: Nothing more is to come.
    """

    def __init__(
        self,
        key: LogKey,
        opening: bytes,
        sequences: Sequence[ReceivedSequence],
        dirty: dict[RequestLog, None],
        on_lost: Callable[[], None],
        owner: str,
    ) -> None:
        self.key = key
        self.owner = owner
        self.opening = opening
        self.opened = False
        self.closed = False
        self.on_lost = on_lost
        self._sequences = sequences
        self._dirty = dirty
        self._end: kvmanager_pb2.RequestEnd | None = None
        self._nothing = [(0, False)] * len(sequences)
        self._written = self._nothing
        self._being_written = self._nothing

    def touch(self) -> None:
        """There is something new."""
        self._dirty[self] = None

    def end(self, end: kvmanager_pb2.RequestEnd) -> None:
        """The request is over."""
        self._end = end
        self._dirty[self] = None

    def go_on(self) -> None:
        """The log has its opening, and all that the request has now."""
        self.opened = True
        self._written = self._state()

    def start_anew(self) -> None:
        """The log is gone."""
        self.opened = False
        self._written = self._nothing
        self._dirty[self] = None

    def _state(self) -> list[tuple[int, bool]]:
        return [(len(each.token_ids), each.finish_reason is not None) for each in self._sequences]

    def unwritten(self) -> LogEntry:
        """What is not in the log yet."""
        self._being_written = self._state()
        updates = [
            self._sequences[index].since(written[0], index)
            for index, (written, now) in enumerate(zip(self._written, self._being_written, strict=True))
            if written != now
        ]
        data = encode_tokens(updates, self._end) if updates or self._end is not None else b""
        return LogEntry(self.key, self.owner, data, last=self._end is not None)

    def confirm(self) -> None:
        """What was given out last has been written."""
        self._written = self._being_written

    def everything(self) -> LoggedAnswer:
        """All that the request has, written or not."""
        updates = [each.since(0, index) for index, each in enumerate(self._sequences) if each.token_ids]
        return LoggedAnswer(self.opening, updates, self._end, _new_owner(), in_store=False)


class TokenLogs:
    """The logs of all requests that this gateway serves.

    Args:
        store: Where they are kept.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._running: dict[LogKey, RequestLog] = {}
        self._dirty: dict[RequestLog, None] = {}
        self._something = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._num_rounds = 0
        self._behind_since: float | None = None

    @property
    def lag(self) -> float:
        """Seconds for which something has been waiting for a store that does not take it."""
        return 0.0 if self._behind_since is None else asyncio.get_running_loop().time() - self._behind_since

    @property
    def num_unwritten(self) -> int:
        """Requests that have something new."""
        return len(self._dirty)

    def open(
        self,
        key: LogKey,
        opening: bytes,
        sequences: Sequence[ReceivedSequence],
        on_lost: Callable[[], None],
        known: LoggedAnswer | None = None,
    ) -> RequestLog:
        """Begins a request's log, in place of an older one of that name, or goes on with one.

        Args:
            opening: What it takes to submit the request again.
            sequences: What it has; read when it is written.
            on_lost: Called when somebody else has taken the request over.
            known: What was taken over, all of which the sequences have.
        """
        if (other := self._running.get(key)) is not None:
            self._give_away(other)
        owner = known.owner if known is not None else _new_owner()
        new = self._running[key] = RequestLog(key, opening, sequences, self._dirty, on_lost, owner)
        if known is not None and known.in_store:
            new.go_on()
        new.touch()
        self._something.set()
        return new

    def close(self, request: RequestLog) -> None:
        """Nothing more is to come, from here."""
        request.closed = True
        if self._running.get(request.key) is request:
            del self._running[request.key]

    async def take_over(self, key: LogKey) -> LoggedAnswer | None:
        """All that is known of a request. Whoever serves it is told that it no longer does, now or when it writes.

        Returns:
            None where there is no such request.

        Raises:
            StateUnavailable: nobody knows.
        """
        if (running := self._running.get(key)) is not None:
            self._give_away(running)
            return running.everything()
        with suppress(StateUnavailable):
            await self.flush()  # the last words of a call that ended here a moment ago
        owner = _new_owner()
        logged = await self._store.requests.take_over(key, owner)
        return None if logged is None else _answer(logged, owner)

    def _give_away(self, request: RequestLog) -> None:
        self._dirty.pop(request, None)
        self.close(request)
        request.on_lost()

    # Writing

    async def run(self) -> None:
        """Writes what is new, for ever."""
        while True:
            await self._something.wait()
            try:
                await self._look_for_lost_logs()
                await self.flush()
            except StateUnavailable as error:
                log.debug("token logs are not written", extra={"reason": str(error)})
                self._bound()
                await asyncio.sleep(RETRY_SECONDS)
            else:
                await asyncio.sleep(ROUND_SECONDS)
            if not self._dirty and not self._running:
                self._something.clear()

    async def flush(self) -> None:
        """Writes all that is new.

        Raises:
            StateUnavailable: some of it may have been written. All of it is, with a later round.
        """
        async with self._one_at_a_time:
            batch = list(self._dirty)
            self._dirty.clear()
            if batch and self._behind_since is None:
                self._behind_since = asyncio.get_running_loop().time()
            try:
                await self._write(batch)
            except BaseException:
                self._dirty.update(dict.fromkeys(batch))
                raise
            self._behind_since = None

    async def _write(self, batch: Sequence[RequestLog]) -> None:
        # A name that was used again since belongs to the later request.
        latest = {each.key: each for each in batch if self._running.get(each.key) in (None, each)}
        await asyncio.gather(*(self._begin(each) for each in latest.values() if not each.opened))
        entries = [each.unwritten() for each in latest.values()]
        lost = await self._store.requests.append([entry for entry in entries if entry.data])
        for request in latest.values():
            request.confirm()
            if request.key in lost:
                self._give_away(request)

    async def _begin(self, request: RequestLog) -> None:
        await self._store.requests.open(request.key, request.owner, request.opening)
        request.opened = True

    async def _look_for_lost_logs(self) -> None:
        """A store that was emptied has forgotten requests that still run: they are noted once more."""
        self._num_rounds += 1
        if self._num_rounds % LOOK_ROUNDS:
            return
        opened = [key for key, request in self._running.items() if request.opened]
        for key in await self._store.requests.missing(opened):
            if (request := self._running.get(key)) is not None:
                request.start_anew()

    def _bound(self) -> None:
        """Of those that have ended, only so many wait for the store's return. Those that were not even begun do not:
        another gateway may have begun the request anew by then.
        """
        ended = [request for request in self._dirty if request.closed]
        opened = [request for request in ended if request.opened]
        kept = set(opened[:MAX_ENDED_LOGS])
        for request in ended:
            if request not in kept:
                del self._dirty[request]


def _answer(logged: LoggedRequest, owner: str) -> LoggedAnswer:
    updates: list[Update] = []
    end: kvmanager_pb2.RequestEnd | None = None
    for entry in logged.entries:
        more, last = decode_tokens(entry)
        updates += more
        end = last or end
    return LoggedAnswer(logged.opening, updates, end, owner, in_store=True)


def _new_owner() -> str:
    return secrets.token_hex(16)
