"""The tenants as the gateway knows them: read again when they change, so that no call waits for where they are kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

from gateway.tenants import Directory
from services.state.store import StateUnavailable
from services.state.tenants import TenantStore

log = logging.getLogger(__name__)

REFRESH_SECONDS = 1.0


class DirectoryFeed:
    """Follows the store of tenants. While that is away, what was known last holds.

    Args:
        store: Where they are kept.
        namespace_members: Tenants that have joined shared namespaces, beside what the store says.
    """

    def __init__(self, store: TenantStore, namespace_members: Mapping[str, Collection[str]]) -> None:
        self._store = store
        self._members = namespace_members
        self._directory = Directory([], namespace_members)
        self._version: str | None = None
        self._trouble = ""

    @property
    def directory(self) -> Directory:
        """What is known."""
        return self._directory

    @property
    def known(self) -> bool:
        """Whether the store could be read since the start."""
        return self._version is not None

    async def refresh(self) -> None:
        """Reads what has changed.

        Raises:
            StateUnavailable: Nothing could be read; what was known is kept.
        """
        version = await self._store.version()
        if version == self._version:
            return
        tenants = await self._store.all()
        # Tenants are never removed. So where there were some and now are none, the store was lost, not emptied: to
        # believe it would let everybody in.
        if not tenants and not self._directory.empty:
            raise StateUnavailable("all tenants are gone from the store")
        self._directory = Directory(tenants, self._members)
        self._version = version

    async def run(self) -> None:
        """Follows for ever."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            try:
                await self.refresh()
            except StateUnavailable as error:
                self._note(str(error))
            else:
                self._note("")

    def _note(self, trouble: str) -> None:
        """One line when reading fails and one when it works again, not one for each try."""
        if bool(trouble) != bool(self._trouble):
            if trouble:
                log.warning("tenants can't be read; those known last hold", extra={"error": trouble})
            else:
                log.info("tenants can be read again")
        self._trouble = trouble
