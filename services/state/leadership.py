"""Leadership: which process of a group leads it, and the epochs that fence those that led before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that leads, or would.

    Attributes:
        address: where it is, for people.
        incarnation: differs between two lives of a process, so that a new one never takes its predecessor's lease for
            its own. Without ``@``.
    """

    address: str
    incarnation: str

    def __post_init__(self) -> None:
        if not self.incarnation or "@" in self.incarnation:
            raise ValueError(f"incarnation: must not be empty nor hold '@': {self.incarnation!r}")


class NotLeader(Exception):
    """Another process leads the group, or none does."""


class Leadership(Protocol):
    """One lease for each group, and a counter of epochs that only its holder moves.

    Two processes never have the lease at once by the store's clock. A holder's own clock may differ in rate and an
    answer takes its time, so a holder counts its lease from *before* it asked, and what it does under an old lease is
    fenced by the epoch. A store that lost what it held may give the lease to another while it still runs: fencing is
    what keeps that harmless.
    """

    async def lead(self, group: str, holder: Holder, lease_seconds: float) -> bool:
        """Takes the lease where it is free, renews it where the holder has it.

        Returns:
            Whether the holder has it now, for `lease_seconds`.

        Raises:
            StateUnavailable: it is not known whether it was taken or renewed.
        """

    async def give_up(self, group: str, holder: Holder) -> None:
        """Frees the lease at once, if the holder has it.

        Raises:
            StateUnavailable: the lease may go on until its end.
        """

    async def next_epoch(self, group: str, holder: Holder, above: int) -> int:
        """A number above `above` and above every one given out for this group before.

        Args:
            above: the highest epoch that executors have seen, so that epochs rise even where the store lost its own.

        Raises:
            NotLeader: the holder does not have the lease. No epoch was taken.
            StateUnavailable: an epoch may have been taken; nobody will get it again.
        """

    async def leader(self, group: str) -> Holder | None:
        """Who has the lease now, for people and health. Old as soon as it is read.

        Raises:
            StateUnavailable: nobody knows.
        """
