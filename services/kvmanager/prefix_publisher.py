"""What the prefix caches of a group hold, as gateways that choose between groups read it in the prefix directory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kvmanager.kv_events import AllBlocksCleared
from kvmanager.manager import KVManager
from kvmanager.views import cached_identities, has_cached
from services.state.prefix_directory import LEASE_SECONDS, PrefixDirectory
from services.state.store import StateUnavailable

PUBLISH_SECONDS = 0.1
AWAY_SECONDS = 1.0


class PrefixPublisher:
    """Follows the core's events, a few behind. What can't be told for certain is told anew as a whole.

    Args:
        model: Its name; "" while it is not known.
    """

    def __init__(self, manager: KVManager, directory: PrefixDirectory, group: str, model: Callable[[], str]) -> None:
        self._manager = manager
        self._directory = directory
        self._group = group
        self._model = model
        self._next_event = 1
        self._complete = False
        self._renewed = 0.0

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            await asyncio.sleep(PUBLISH_SECONDS)
            if self._model():
                await self.publish()

    async def publish(self) -> None:
        """Tells what has changed since the last time."""
        try:
            if self._complete:
                self._complete = await self._publish_changes()
            if not self._complete:
                await self._publish_all()
                self._complete = True
        except StateUnavailable:
            self._complete = False
            await asyncio.sleep(AWAY_SECONDS)

    async def _publish_changes(self) -> bool:
        """Returns False where that is not enough."""
        number, events = self._manager.kv_events.since(self._next_event)
        if number != self._next_event or any(isinstance(event, AllBlocksCleared) for event in events):
            return False
        self._next_event += len(events)
        # What has come and gone meanwhile, or is in two places, is as it is now.
        touched = {event.identity for event in events if not isinstance(event, AllBlocksCleared)}
        added = {identity for identity in touched if has_cached(self._manager, identity)}
        if touched:
            return await self._tell(added, touched - added)
        if asyncio.get_running_loop().time() - self._renewed < LEASE_SECONDS / 3:
            return True
        self._note_renewal()
        return await self._directory.refresh(self._model(), self._group)

    async def _publish_all(self) -> None:
        self._next_event = self._manager.kv_events.last_number + 1
        identities = cached_identities(self._manager)
        await self._directory.clear(self._model(), self._group)
        await self._tell(identities, set())

    async def _tell(self, added: set[bytes], removed: set[bytes]) -> bool:
        """Returns whether the directory had what it was told before."""
        self._note_renewal()
        return await self._directory.publish(self._model(), self._group, list(added), list(removed))

    def _note_renewal(self) -> None:
        self._renewed = asyncio.get_running_loop().time()
