"""The state store: what outlives a process, behind one small interface, in this process or in Redis.

**No step and no stream waits for it.** The store may take seconds to say that it is away, so it is called from tasks of
their own: what they bring back is applied when it is there, and what they could not write is kept (bounded) or dropped,
as each part says. Whoever needs an answer before it can go on (a new leader its epoch, a call its tenant) knows what it
does without one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from services.config import EMBEDDED_STATE
from services.state.executor_registry import ExecutorRegistry
from services.state.leadership import Leadership
from services.state.limits import SharedLimits
from services.state.pins import PinStore
from services.state.prefix_directory import PrefixDirectory
from services.state.tenants import TenantStore, UsageStore
from services.state.token_log import TokenLog, TokenLogLimits


class StateUnavailable(Exception):
    """The store is away, full or read-only. The message says why, without secrets, and fits a log."""


class StateStore(Protocol):
    """Every part raises `StateUnavailable` when the store can't do what it is asked to. For one event loop."""

    @property
    def leadership(self) -> Leadership:
        """Leases of groups, and epochs."""

    @property
    def executors(self) -> ExecutorRegistry:
        """Executors by group."""

    @property
    def requests(self) -> TokenLog:
        """Token logs by request."""

    @property
    def prefixes(self) -> PrefixDirectory:
        """Cached blocks by model and group."""

    @property
    def pins(self) -> PinStore:
        """Pins by group."""

    @property
    def tenants(self) -> TenantStore:
        """Tenants and their keys."""

    @property
    def limits(self) -> SharedLimits | None:
        """What tenants use of their limits; None: there is only one gateway to know it."""

    @property
    def usage(self) -> UsageStore:
        """What tenants have used."""

    @property
    def available(self) -> bool:
        """Whether the store takes writes, as far as is known."""

    def on_change(self, callback: Callable[[bool], None]) -> None:
        """Calls back on the event loop with the new `available` each time that it changes."""

    async def start(self) -> None:
        """Must come before everything else. A store that is away now is no error: it is watched from here on.

        Raises:
            ConfigError: another version of the program has written it, in a way that this one does not know.
        """

    async def close(self) -> None:
        """Lets go of connections and tasks."""


def open_store(url: str, password: str | None = None, token_log: TokenLogLimits | None = None) -> StateStore:
    """A store that is not started yet.

    Args:
        url: `embedded`, or a Redis URL without a password.
        password: of Redis.
        token_log: bounds of the token log; the defaults when absent.
    """
    limits = token_log or TokenLogLimits()
    if url == EMBEDDED_STATE:
        from services.state.embedded.store import EmbeddedStore

        return EmbeddedStore(limits)
    from services.state.redis.store import RedisStore

    return RedisStore(url, password, limits)
