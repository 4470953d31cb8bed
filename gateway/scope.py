"""Scopes of the prefix cache: who may reuse whose keys and values.

A client states a scope; with the caller's identity, which it does not state, it becomes a salt, part of every block
identity computed under it. So blocks of different scopes never match, and no one can ask for the scope of another.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from gateway.errors import InvalidArgument, PermissionDenied, ScopeTooWide

DEFAULT_NAME = "default"
MAX_NAME_LENGTH = 64

_NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{MAX_NAME_LENGTH}}}")


class ScopeLevel(IntEnum):
    """How far a scope reaches; of two, the one with the higher number is narrower."""

    SHARED = 0
    TENANT = 1
    APP = 2
    REQUEST = 3


@dataclass(frozen=True, slots=True)
class CacheScope:
    """A scope as the client states it.

    Attributes:
        level: None where the client states none that is known here.
        namespace: Of a shared scope.
    """

    level: ScopeLevel | None
    namespace: str = ""


TENANT_SCOPE = CacheScope(ScopeLevel.TENANT)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who is asking, as whoever authenticates it says, never the request.

    Attributes:
        tenant: Whom memory is charged to.
        app: One of the tenant's applications.
        shared_namespaces: Those that the tenant has joined.
        widest_scope: The widest that the caller may ask for.
    """

    tenant: str = DEFAULT_NAME
    app: str = DEFAULT_NAME
    shared_namespaces: frozenset[str] = frozenset()
    widest_scope: ScopeLevel = ScopeLevel.SHARED

    @property
    def default_scope(self) -> CacheScope:
        """Of a request that states none: the tenant, or the widest that the caller may ask for."""
        return CacheScope(max(ScopeLevel.TENANT, self.widest_scope))


@dataclass(frozen=True, slots=True)
class Scope:
    """A scope as the memory manager knows it.

    Attributes:
        salt: Part of the identity of every block.
        narrowness: Of two scopes in one block the higher number counts.
        owner: Whom the blocks are charged to: the tenant, or ``shared:NAME``, which no tenant can be called.
    """

    salt: bytes
    narrowness: int
    owner: str


@dataclass(frozen=True, slots=True)
class ScopeSpan:
    """So many tokens of a prompt in a row that have one scope."""

    num_tokens: int
    scope: Scope


class RequestScopes:
    """The scopes that one request can have.

    Args:
        identity: Of the caller.
        random_bits: Gives so many random bits; 128 of them make the request's own scope one that nobody can guess.
    """

    def __init__(self, identity: Identity, random_bits: Callable[[int], int]) -> None:
        self._identity = identity
        self._nonce = random_bits(128).to_bytes(16, "little")

    def resolve(self, scope: CacheScope, field: str) -> Scope:
        """The scope for this caller.

        Args:
            field: Where the request states it, for the error.

        Raises:
            InvalidArgument: None is stated that is known here. It could be a narrower one, so it is not guessed.
            ScopeTooWide: The caller may not ask for one that reaches so far.
            PermissionDenied: The tenant has not joined the shared namespace.
        """
        tenant, app = self._identity.tenant, self._identity.app
        if scope.level is None:
            raise InvalidArgument(field, "must be one of request, app, tenant and shared")
        if scope.level < self._identity.widest_scope:
            widest = self._identity.widest_scope.name.lower()
            raise ScopeTooWide(field, f"reaches further than this key may: {widest} is the widest")
        if scope.level is ScopeLevel.SHARED:
            self._check_joined(scope.namespace, f"{field}.shared")
            return Scope(_salt("shared", scope.namespace), scope.level, f"shared:{scope.namespace}")
        if scope.level is ScopeLevel.TENANT:
            return Scope(_salt("tenant", tenant), scope.level, tenant)
        if scope.level is ScopeLevel.APP:
            return Scope(_salt("app", tenant, app), scope.level, tenant)
        return Scope(_salt("request", tenant, app) + _frame(self._nonce), scope.level, tenant)

    def narrower(self, first: Scope, second: Scope) -> Scope:
        """The scope of what depends on both: that of two shared namespaces is the caller's tenant."""
        if first == second or first.narrowness > second.narrowness:
            return first
        if second.narrowness > first.narrowness:
            return second
        return self.resolve(TENANT_SCOPE, "")

    def _check_joined(self, namespace: str, field: str) -> None:
        if not is_name(namespace):
            raise InvalidArgument(field, f"must be {NAME_RULE}")
        if namespace not in self._identity.shared_namespaces:
            raise PermissionDenied(field, f"the tenant has not joined a shared namespace {namespace!r}")


NAME_RULE = f"1 to {MAX_NAME_LENGTH} letters, digits, underscores, dots and hyphens"


def is_name(text: str) -> bool:
    """Whether a tenant, an app or a shared namespace can be called so."""
    return _NAME.fullmatch(text) is not None


def _salt(tag: str, *parts: str) -> bytes:
    """Every part is framed by its length, so that no two different scopes give the same bytes."""
    return b"".join(_frame(part.encode()) for part in (tag, *parts))


def _frame(part: bytes) -> bytes:
    return len(part).to_bytes(4, "little") + part
