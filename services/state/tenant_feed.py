"""Tenants as a process knows them: read again when they change, so that nothing waits for where they are kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gateway.tenants import Tenant
from services.state.store import StateUnavailable
from services.state.tenants import TenantStore

log = logging.getLogger(__name__)


class TenantFeed:
    """Follows the store of tenants. While that is away, what was known last holds.

    Args:
        store: Where they are kept.
        take: Gets all tenants, at first and each time that one has changed.
    """

    def __init__(self, store: TenantStore, take: Callable[[list[Tenant]], None]) -> None:
        self._store = store
        self._take = take
        self._version: str | None = None
        self._had_some = False
        self._readable = True

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
        if self._had_some and not tenants:
            raise StateUnavailable("all tenants are gone from the store")
        self._had_some = bool(tenants)
        self._version = version
        self._take(tenants)

    async def run(self, seconds: float) -> None:
        """Looks every so many seconds, for ever."""
        while True:
            try:
                await self.refresh()
            except StateUnavailable as error:
                if self._readable:
                    log.warning("tenants can't be read; what was known last holds", extra={"error": str(error)})
                self._readable = False
            else:
                if not self._readable:
                    log.info("tenants can be read again")
                self._readable = True
            await asyncio.sleep(seconds)
