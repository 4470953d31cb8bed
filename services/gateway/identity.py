"""Who is calling: told by an API key, or by a proxy in front that can be trusted to say it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import grpc

from gateway.errors import Unauthenticated
from gateway.scope import DEFAULT_NAME, NAME_RULE, Identity, is_name
from services.gateway.directory import DirectoryFeed
from services.rpc.status import RpcError

TENANT_KEY = "octavo-tenant"
APP_KEY = "octavo-app"
AUTHORIZATION_KEY = "authorization"

UNKNOWN_RETRY_SECONDS = 1.0

Metadata: TypeAlias = "Sequence[tuple[str, str | bytes]]"

KEY_NEEDED = "the call needs a valid API key, as metadata 'authorization: Bearer KEY'"
"""Said whatever is wrong with the key."""


class Callers:
    """Tells callers apart.

    Args:
        feed: The tenants.
        trusted: The metadata says who is calling.
        open_without_tenants: While there are no tenants, everybody is let in, as one tenant.
    """

    def __init__(self, feed: DirectoryFeed, *, trusted: bool, open_without_tenants: bool) -> None:
        self._feed = feed
        self._trusted = trusted
        self._open = open_without_tenants

    @property
    def open_to_all(self) -> bool:
        """Whoever comes is let in, as the one tenant that there is."""
        return not self._trusted and self._feed.known and self._feed.directory.empty and self._open

    def identify(self, metadata: Iterable[tuple[str, str | bytes]]) -> Identity:
        """The caller's identity, from a call's metadata.

        Raises:
            RpcError: UNAUTHENTICATED: no valid key, or no clear word of the proxy. UNAVAILABLE: the tenants are not
                known yet.
        """
        given = list(metadata)
        directory = self._feed.directory
        if self._trusted:
            tenant, app = _stated(given)
            return Identity(tenant, app, directory.namespaces(tenant))
        if not self._feed.known:
            message = "the tenants are not known yet: the state store is away"
            raise RpcError(grpc.StatusCode.UNAVAILABLE, message, "TENANTS_UNKNOWN", retry_after=UNKNOWN_RETRY_SECONDS)
        if self.open_to_all:
            return Identity(shared_namespaces=directory.namespaces(DEFAULT_NAME))
        try:
            return directory.authenticate(bearer_of(given))
        except Unauthenticated:
            raise _unauthenticated(KEY_NEEDED, "API_KEY_NEEDED") from None


def bearer_of(metadata: Metadata) -> str:
    """The key that a call brings; empty where there is none, or several."""
    values = [value for name, value in metadata if name == AUTHORIZATION_KEY]
    if len(values) != 1 or not isinstance(values[0], str):
        return ""
    scheme, _, key = values[0].partition(" ")
    return key.strip(" ") if scheme.lower() == "bearer" else ""


def _stated(metadata: Metadata) -> tuple[str, str]:
    """Tenant and app as the proxy says. Several, as when a client sets one beside the proxy's, are no clear word."""
    tenant = _name(metadata, TENANT_KEY)
    if tenant is None:
        raise _unclear(f"the call's metadata has no {TENANT_KEY}")
    return tenant, _name(metadata, APP_KEY) or DEFAULT_NAME


def _name(metadata: Metadata, key: str) -> str | None:
    values = [value for name, value in metadata if name == key]
    if not values:
        return None
    (value, *others) = values
    if others:
        raise _unclear(f"the call's metadata has more than one {key}")
    if not isinstance(value, str) or not is_name(value):
        raise _unclear(f"{key} in the call's metadata must be {NAME_RULE}")
    return value


def _unclear(message: str) -> RpcError:
    return _unauthenticated(message, "BAD_IDENTITY")


def _unauthenticated(message: str, reason: str) -> RpcError:
    return RpcError(grpc.StatusCode.UNAUTHENTICATED, message, reason)
