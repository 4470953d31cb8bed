"""What tenants may have of the blocks: as the configuration says, and as their records say, which may change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from gateway.tenants import Tenant
from kvmanager.accounts import Quota
from services.state.tenant_feed import TenantFeed
from services.state.tenants import TenantStore

log = logging.getLogger(__name__)

REFRESH_SECONDS = 5.0


class TenantQuotas:
    """The quotas that hold now.

    Args:
        store: Where tenants are kept.
        configured: What the configuration says. A tenant whose record says something too has what the record says.
        apply: Gets all quotas, each time that they are others.
    """

    def __init__(
        self, store: TenantStore, configured: Mapping[str, Quota], apply: Callable[[Mapping[str, Quota]], None]
    ) -> None:
        self._configured = configured
        self._apply = apply
        self._applied = dict(configured)
        self._feed = TenantFeed(store, self._take)

    async def refresh(self) -> None:
        """As `TenantFeed.refresh`."""
        await self._feed.refresh()

    async def run(self) -> None:
        """Follows the store for ever."""
        await self._feed.run(REFRESH_SECONDS)

    def _take(self, tenants: list[Tenant]) -> None:
        quotas = {**self._configured, **_quotas(tenants)}
        if quotas != self._applied:
            self._apply(quotas)
            self._applied = quotas
            log.info("quotas have changed", extra={"owners": len(quotas)})


def _quotas(tenants: Iterable[Tenant]) -> dict[str, Quota]:
    """Of those tenants whose records say any."""
    quotas = {each.name: Quota(each.reserved_blocks, each.max_blocks, each.weight) for each in tenants}
    return {name: quota for name, quota in quotas.items() if quota != Quota()}
