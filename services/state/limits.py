"""What tenants use of their limits, over all gateways. The rule is `gateway.rate_limits`'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.tenants import Tenant

LEASE_SECONDS = 30.0
"""For so long a request counts as running after its gateway has last said so."""


@dataclass(frozen=True, slots=True)
class TenantNews:
    """What happened to one tenant's requests at one gateway.

    Attributes:
        tokens: Generated since the last news.
        running: Leases of requests that run.
        ended: Leases of those that ended.
    """

    tenant: Tenant
    tokens: int = 0
    running: Sequence[str] = ()
    ended: Sequence[str] = ()


class SharedLimits(Protocol):
    """Every method raises `StateUnavailable` while the store is away: then each gateway keeps to the limits alone."""

    async def begin(self, tenant: Tenant, prompt_tokens: int, lease: str) -> None:
        """Lets a request in, and takes what it brings.

        Args:
            lease: A name of the request that no other has.

        Raises:
            LimitExceeded: It would be too much; nothing is taken.
        """

    async def tell(self, news: Sequence[TenantNews]) -> None:
        """Takes note of what happened, in one round trip."""
