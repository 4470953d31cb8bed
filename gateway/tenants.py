"""Tenants: what each may have, and whose an API key is."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from gateway.api_keys import ApiKey, has_secret, parse_key
from gateway.errors import Unauthenticated
from gateway.scope import NAME_RULE, Identity, is_name


@dataclass(frozen=True, slots=True)
class Tenant:
    """Someone whose applications use the service. Numbers are 0 for no limit.

    Attributes:
        keys: All that it was ever given, revoked ones too.
        requests_per_minute: See `gateway.rate_limits`, as for the next two.
        tokens_per_minute: Of prompts and answers together.
        max_concurrent: Requests that run or wait at the same time.
        reserved_blocks: Of each executor's blocks, those that nobody else gets.
        max_blocks: Most blocks of each executor that are charged to it at once.
        weight: Its part of what is not reserved, relative to the others'.
        namespaces: Shared cache namespaces that it has joined.
    """

    name: str
    keys: tuple[ApiKey, ...] = ()
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    max_concurrent: int = 0
    reserved_blocks: int = 0
    max_blocks: int = 0
    weight: float = 1.0
    namespaces: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for each in (self.name, *self.namespaces, *(key.app for key in self.keys)):
            if not is_name(each):
                raise ValueError(f"{each!r} is no name: names are {NAME_RULE}")
        for limit in ("requests_per_minute", "tokens_per_minute", "max_concurrent", "reserved_blocks", "max_blocks"):
            if getattr(self, limit) < 0:
                raise ValueError(f"{limit}: must not be negative, is {getattr(self, limit)}")
        if self.max_blocks and self.reserved_blocks > self.max_blocks:
            raise ValueError(f"reserved_blocks: must be at most max_blocks, {self.max_blocks}")
        if not 0 < self.weight < math.inf:
            raise ValueError(f"weight: must be a number above 0, is {self.weight}")

    def revoke(self, now: int, key_id: str | None = None) -> Tenant:
        """The tenant without a valid key, or without this one.

        Args:
            now: Seconds since 1970.
        """
        keys = (
            replace(key, revoked_at=now) if key.revoked_at is None and key_id in (None, key.key_id) else key
            for key in self.keys
        )
        return replace(self, keys=tuple(keys))


class Directory:
    """All tenants at one moment.

    Args:
        tenants: Each name once.
        namespace_members: Tenants that have joined shared namespaces, beside what is said with each tenant.
    """

    def __init__(self, tenants: Iterable[Tenant], namespace_members: Mapping[str, Iterable[str]] | None = None) -> None:
        self._tenants = {tenant.name: tenant for tenant in tenants}
        self._keys = {key.key_id: (tenant, key) for tenant in self._tenants.values() for key in tenant.keys}
        self._members = {name: frozenset(tenants) for name, tenants in (namespace_members or {}).items()}

    @property
    def empty(self) -> bool:
        """Whether nobody was ever given a key."""
        return not self._tenants

    @property
    def names(self) -> Collection[str]:
        """Of all tenants."""
        return self._tenants.keys()

    def tenant(self, name: str) -> Tenant:
        """What a tenant may have; one that is not known has no limits."""
        return self._tenants.get(name) or Tenant(name)

    def authenticate(self, api_key: str) -> Identity:
        """Whose a key is.

        Raises:
            Unauthenticated: It is no key, one that nobody has, or one that was revoked. Which, is not told.
        """
        key_id, secret = parse_key(api_key) or ("", "")
        tenant, key = self._keys.get(key_id, (None, None))
        if not has_secret(key, secret) or tenant is None or key is None or key.revoked_at is not None:
            raise Unauthenticated
        return Identity(tenant.name, key.app, self.namespaces(tenant.name), key.widest_scope)

    def namespaces(self, tenant: str) -> frozenset[str]:
        """The shared namespaces that a tenant has joined."""
        configured = (name for name, tenants in self._members.items() if tenant in tenants)
        return self.tenant(tenant).namespaces.union(configured)
