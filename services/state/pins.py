"""Pins that are to be there again when another KV manager leads a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredPin:
    """What a pin is computed from.

    Attributes:
        pin_id: of the group.
        seconds_left: until it is let go of.
        order: opaque here.
    """

    pin_id: str
    seconds_left: float
    order: bytes


class PinStore(Protocol):
    """Pins by group. Their time runs while nobody leads, too."""

    async def put(self, group: str, pin: StoredPin) -> None:
        """Notes a pin, or replaces one of this id.

        Raises:
            StateUnavailable: it may not have been noted.
        """

    async def remove(self, group: str, pin_id: str) -> None:
        """Forgets a pin, if it is there.

        Raises:
            StateUnavailable: it may be there until its time is over.
        """

    async def list(self, group: str) -> Sequence[StoredPin]:
        """Pins whose time is not over, by id.

        Raises:
            StateUnavailable: nobody knows.
        """
