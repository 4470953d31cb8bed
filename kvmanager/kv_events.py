"""What enters and leaves the prefix caches, numbered, for routers outside."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

REPLAY_WINDOW = 65_536
"""Events that are kept for whoever comes back."""


class Tier(Enum):
    """Where a block is."""

    DEVICE = "device"
    HOST = "host"


@dataclass(slots=True)  # not frozen: that would make each one three times as dear, and there is one for each block
class BlockStored:
    """A full block can be given out. `tokens` is int32, packed."""

    executor: str
    tier: Tier
    identity: bytes
    parent: bytes
    tokens: bytes


@dataclass(slots=True)
class BlockRemoved:
    """A block's content is gone."""

    executor: str
    tier: Tier
    identity: bytes


@dataclass(slots=True)
class AllBlocksCleared:
    """An executor is gone, and everything that it held."""

    executor: str


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KVEventLog:
    """The last events, numbered from 1 without gaps."""

    def __init__(self, window: int = REPLAY_WINDOW) -> None:
        self._events: deque[KVEvent] = deque(maxlen=window)
        self.last_number = 0

    def append(self, event: KVEvent) -> None:
        self._events.append(event)
        self.last_number += 1

    def since(self, number: int) -> tuple[int, list[KVEvent]]:
        """Returns the events from `number` on that are still kept, and the number of the first of them."""
        oldest = self.last_number - len(self._events) + 1
        first = max(number, oldest, 1)
        skip = first - oldest
        # A reader that keeps up takes a few from the right end; walking there from the left would cost the window.
        count = len(self._events) - skip
        if count <= 0:
            return self.last_number + 1, []
        tail = [self._events[-index] for index in range(count, 0, -1)] if count < 256 else list(self._events)[skip:]
        return first, tail
