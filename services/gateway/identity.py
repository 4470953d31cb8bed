"""Who is calling: tenant and app, from the call's metadata where a proxy in front can be trusted to set it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import grpc

from gateway.scope import DEFAULT_NAME, NAME_RULE, Identity, is_name
from services.rpc.status import RpcError

TENANT_KEY = "octavo-tenant"
APP_KEY = "octavo-app"


class Callers:
    """Tells callers apart.

    Args:
        trusted: Whether the metadata says who is calling. If not, all callers are one tenant's.
        namespace_members: The tenants that joined each shared namespace.
    """

    def __init__(self, trusted: bool, namespace_members: Mapping[str, Collection[str]]) -> None:
        self._trusted = trusted
        self._members = namespace_members

    def identify(self, metadata: Iterable[tuple[str, str | bytes]]) -> Identity:
        """The caller's identity, from a call's metadata.

        Raises:
            RpcError: UNAUTHENTICATED: no tenant is given, what is given is no name, or there are several, as when a
                client sets one beside the proxy's.
        """
        if not self._trusted:
            return self._identity(DEFAULT_NAME, DEFAULT_NAME)
        given = list(metadata)
        tenant = _name(given, TENANT_KEY)
        if tenant is None:
            raise _unauthenticated(f"the call's metadata has no {TENANT_KEY}")
        return self._identity(tenant, _name(given, APP_KEY) or DEFAULT_NAME)

    def _identity(self, tenant: str, app: str) -> Identity:
        joined = frozenset(name for name, tenants in self._members.items() if tenant in tenants)
        return Identity(tenant, app, joined)


def _name(metadata: list[tuple[str, str | bytes]], key: str) -> str | None:
    values = [value for name, value in metadata if name == key]
    if not values:
        return None
    (value, *others) = values
    if others:
        raise _unauthenticated(f"the call's metadata has more than one {key}")
    if not isinstance(value, str) or not is_name(value):
        raise _unauthenticated(f"{key} in the call's metadata must be {NAME_RULE}")
    return value


def _unauthenticated(message: str) -> RpcError:
    return RpcError(grpc.StatusCode.UNAUTHENTICATED, message, "BAD_IDENTITY")
