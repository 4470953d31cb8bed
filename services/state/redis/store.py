"""The state store in Redis."""

from __future__ import annotations

from collections.abc import Callable

from services.state.redis.connection import RedisConnection
from services.state.redis.executor_registry import RedisExecutorRegistry
from services.state.redis.leadership import RedisLeadership
from services.state.redis.limits import RedisLimits
from services.state.redis.pins import RedisPinStore
from services.state.redis.prefix_directory import RedisPrefixDirectory
from services.state.redis.tenants import RedisTenants
from services.state.redis.token_log import RedisTokenLog
from services.state.redis.usage import RedisUsage
from services.state.token_log import TokenLogLimits


class RedisStore:
    """As `StateStore` says: every part over one connection."""

    def __init__(self, url: str, password: str | None, token_log: TokenLogLimits) -> None:
        self._connection = RedisConnection(url, password)
        self.leadership = RedisLeadership(self._connection)
        self.executors = RedisExecutorRegistry(self._connection)
        self.requests = RedisTokenLog(self._connection, token_log)
        self.prefixes = RedisPrefixDirectory(self._connection)
        self.pins = RedisPinStore(self._connection)
        self.tenants = RedisTenants(self._connection)
        self.limits = RedisLimits(self._connection)
        self.usage = RedisUsage(self._connection)

    @property
    def available(self) -> bool:
        return self._connection.availability.available

    def on_change(self, callback: Callable[[bool], None]) -> None:
        self._connection.availability.on_change(callback)

    async def start(self) -> None:
        await self._connection.start()

    async def close(self) -> None:
        await self._connection.close()
