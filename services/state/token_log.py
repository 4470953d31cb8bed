"""The token log: what a request asked for and what it was answered, for the gateway that continues its stream.

The gateway that serves a request owns its log. Another one that is asked to resume the request takes the log over; the
first one's writes are refused from then on, so two gateways never write one log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class LogKey:
    """A request by name. Every tenant has names of its own: the same id of two tenants is two logs."""

    tenant: str
    request_id: str


@dataclass(frozen=True, slots=True)
class LogEntry:
    """What is added to one log.

    Attributes:
        data: a part of the answer, opaque here. Empty data adds nothing; the log just lives on, and ends if `last`.
        last: the answer is complete.
    """

    key: LogKey
    owner: str
    data: bytes
    last: bool = False


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """All that was logged of a request.

    Attributes:
        ended: the answer is complete: there is nothing to continue.
    """

    opening: bytes
    entries: list[bytes]
    ended: bool


@dataclass(frozen=True, slots=True)
class TokenLogLimits:
    """How long logs live and how large they get.

    A log is never shortened from its head: whoever resumes a request needs the opening and every token. One that would
    exceed these bounds is dropped as a whole, and its request can't be resumed any more; it is served on.

    Attributes:
        seconds: a log that nobody has written to for this long is gone.
        max_opening_bytes: of the opening record.
        max_bytes: of the entries of one request together.
        max_entries: of one request.
        max_requests: kept in this process, in the embedded form; those written to longest ago go first. In Redis its
            own `maxmemory` bounds them.
        max_total_bytes: likewise.
    """

    seconds: float = 600.0
    max_opening_bytes: int = 8 * 1024 * 1024
    max_bytes: int = 8 * 1024 * 1024
    max_entries: int = 100_000
    max_requests: int = 10_000
    max_total_bytes: int = 128 * 1024 * 1024


class TokenLog(Protocol):
    """Logs by request. Writers collect what they have and write it now and then, from a task of their own.

    An append that raised may have been done all the same: it is repeated as it was, and whoever reads the log drops
    what is there twice, by the positions in the data.
    """

    async def open(self, key: LogKey, owner: str, opening: bytes) -> None:
        """Begins a log, in place of an older one of that name. Nothing is kept of an opening that is too long.

        Raises:
            StateUnavailable: there may be no log; appending to it then does nothing.
        """

    async def append(self, entries: Sequence[LogEntry]) -> set[LogKey]:
        """Adds to any number of logs at once, in order for each. An entry whose log does not exist (it was never
        opened, or got lost, too old or too large) is left out.

        Returns:
            Those that their entry's owner has no longer, because another took them over.

        Raises:
            StateUnavailable: some may have been added.
        """

    async def missing(self, keys: Sequence[LogKey]) -> set[LogKey]:
        """Which of these requests have no log: it was never opened, or got lost, too old or too large.

        Raises:
            StateUnavailable: nobody knows.
        """

    async def take_over(self, key: LogKey, owner: str) -> LoggedRequest | None:
        """Makes `owner` the log's only writer and returns what is in it; None where there is no such log.

        Raises:
            StateUnavailable: the owner may have changed.
        """
