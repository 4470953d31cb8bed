"""Tenants and their keys, as the state store keeps them; what they have used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.tenants import Tenant

Change = Callable[[Tenant | None], Tenant]
"""Makes what a tenant is to be out of what it is; None: there is none of that name. May be called more than once."""


class TenantStore(Protocol):
    """All tenants. Every method raises `StateUnavailable` where they can't be read or written."""

    async def version(self) -> str:
        """Another one after each change."""

    async def all(self) -> list[Tenant]:
        """Every tenant."""

    async def change(self, name: str, change: Change) -> Tenant:
        """Replaces one tenant, in one step that nobody comes between. What the change raises ends it.

        Returns:
            What it is now.
        """


class EmbeddedTenants:
    """Tenants of this process, gone with it: none, but for those that it is given."""

    def __init__(self, tenants: Sequence[Tenant] = ()) -> None:
        self._tenants = {tenant.name: tenant for tenant in tenants}
        self._version = 0

    async def version(self) -> str:
        return str(self._version)

    async def all(self) -> list[Tenant]:
        return list(self._tenants.values())

    async def change(self, name: str, change: Change) -> Tenant:
        tenant = self._tenants[name] = change(self._tenants.get(name))
        self._version += 1
        return tenant


@dataclass(slots=True)
class Usage:
    """What an app has used.

    Attributes:
        requests: Those that were let in.
        prompt_tokens: Of these.
        cached_tokens: The part of the prompt tokens that came from the prefix cache.
        generated_tokens: Those that clients were sent.
        refused: Requests that were refused because of a limit, or a full queue.
    """

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    refused: int = 0

    def add(self, other: Usage) -> None:
        """Adds what another says."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(frozen=True, slots=True)
class TenantUsage:
    """What a tenant has used since then, by app.

    Attributes:
        since: Seconds since 1970. None: it has used nothing yet.
    """

    since: float | None
    by_app: Mapping[str, Usage]


@dataclass(frozen=True, slots=True)
class UsageBatch:
    """What a gateway has counted since its last batch.

    Attributes:
        writer: The gateway, each time that it starts another.
        number: One more with each batch. A batch that comes again is not counted again.
        usage: By tenant and app.
    """

    writer: str
    number: int
    usage: Mapping[tuple[str, str], Usage]


class UsageStore(Protocol):
    """Totals. Every method raises `StateUnavailable` where they can't be read or written."""

    async def add(self, batch: UsageBatch) -> None:
        """Adds a batch, once."""

    async def of(self, tenant: str) -> TenantUsage:
        """A tenant's totals."""


class EmbeddedUsage:
    """Totals of this process, gone with it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since: dict[str, float] = {}
        self._totals: dict[str, dict[str, Usage]] = {}
        self._numbers: dict[str, int] = {}

    async def add(self, batch: UsageBatch) -> None:
        if self._numbers.get(batch.writer, 0) >= batch.number:
            return
        self._numbers[batch.writer] = batch.number
        for (tenant, app), usage in batch.usage.items():
            self._since.setdefault(tenant, self._now())
            self._totals.setdefault(tenant, {}).setdefault(app, Usage()).add(usage)

    async def of(self, tenant: str) -> TenantUsage:
        return TenantUsage(self._since.get(tenant), dict(self._totals.get(tenant, {})))
