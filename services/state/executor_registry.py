"""The executor registry: which executors a group has, as its leader last saw them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

LEASE_SECONDS = 15.0
"""A registration that is not renewed is gone after this time; renew it three times as often."""


@dataclass(frozen=True, slots=True)
class RegisteredExecutor:
    """An executor that was connected less than `LEASE_SECONDS` ago.

    Attributes:
        incarnation: the executor's own, new at each start of its process.
    """

    address: str
    incarnation: str


class ExecutorRegistry(Protocol):
    """For other processes and for people: nothing here decides what runs where."""

    async def register(self, group: str, address: str, incarnation: str) -> None:
        """Notes an executor, or renews it, for `LEASE_SECONDS`.

        Raises:
            StateUnavailable: it may not have been noted.
        """

    async def remove(self, group: str, address: str) -> None:
        """Forgets an executor that has left, before its lease ends.

        Raises:
            StateUnavailable: it may be there until its lease ends.
        """

    async def list(self, group: str) -> Sequence[RegisteredExecutor]:
        """Executors whose lease runs, by address.

        Raises:
            StateUnavailable: nobody knows.
        """
