"""The tenants as the gateway knows them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gateway.tenants import Directory, Tenant
from services.state.tenant_feed import TenantFeed
from services.state.tenants import TenantStore

REFRESH_SECONDS = 1.0


class DirectoryFeed:
    """The directory that holds now.

    Args:
        store: Where tenants are kept.
        namespace_members: Tenants that have joined shared namespaces, beside what the store says.
    """

    def __init__(self, store: TenantStore, namespace_members: Mapping[str, Collection[str]]) -> None:
        self._members = namespace_members
        self._feed = TenantFeed(store, self._take)
        self.directory = Directory([], namespace_members)

    @property
    def known(self) -> bool:
        """Whether it is more than the configuration says: the store could be read since the start."""
        return self._feed.known

    async def refresh(self) -> None:
        """As `TenantFeed.refresh`."""
        await self._feed.refresh()

    async def run(self) -> None:
        """Follows the store for ever."""
        await self._feed.run(REFRESH_SECONDS)

    def _take(self, tenants: list[Tenant]) -> None:
        self.directory = Directory(tenants, self._members)
