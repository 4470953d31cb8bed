"""The state store within one process."""

from __future__ import annotations

import time
from collections.abc import Callable

from services.state.embedded.executor_registry import EmbeddedExecutorRegistry
from services.state.embedded.leadership import EmbeddedLeadership
from services.state.embedded.pins import EmbeddedPinStore
from services.state.embedded.prefix_directory import EmbeddedPrefixDirectory
from services.state.embedded.token_log import EmbeddedTokenLog
from services.state.tenants import EmbeddedTenants, EmbeddedUsage
from services.state.token_log import TokenLogLimits


class EmbeddedStore:
    """As `StateStore` says; always available.

    Args:
        clock: seconds, of which only differences count.
    """

    def __init__(self, token_log: TokenLogLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.leadership = EmbeddedLeadership(clock)
        self.executors = EmbeddedExecutorRegistry(clock)
        self.requests = EmbeddedTokenLog(token_log, clock)
        self.prefixes = EmbeddedPrefixDirectory(clock)
        self.pins = EmbeddedPinStore(clock)
        self.tenants = EmbeddedTenants()
        self.limits = None
        self.usage = EmbeddedUsage(time.time)
        self.available = True

    def on_change(self, callback: Callable[[bool], None]) -> None:
        """It never changes."""

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass
