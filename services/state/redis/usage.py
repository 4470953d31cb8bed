"""What tenants have used, in Redis.

octavo:1:{usage}:of:TENANT       hash: `APP:COUNT` -> integer, COUNT as the fields of `services.state.tenants.Usage`;
                                 `since` -> seconds since 1970 of the first
octavo:1:{usage}:batch:WRITER    integer: the writer's last batch; expires a day after it
"""

from __future__ import annotations

from dataclasses import fields

from services.state.redis.connection import RedisConnection
from services.state.redis.keys import key, quoted
from services.state.redis.scripts import NOW, Script, command
from services.state.tenants import TenantUsage, Usage, UsageBatch

_COUNTS = [each.name for each in fields(Usage)]
_BATCH_MS = 24 * 60 * 60 * 1000

# KEYS: batch, then a tenant's hash for each count. ARGV: batch number, time in ms that it is remembered; for each hash:
# field, amount.
_ADD = Script(
    NOW
    + """
if tonumber(redis.call('GET', KEYS[1]) or '0') >= tonumber(ARGV[1]) then return end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
for i = 2, #KEYS do
    redis.call('HSETNX', KEYS[i], 'since', math.floor(now / 1000))
    redis.call('HINCRBY', KEYS[i], ARGV[2 * i - 1], ARGV[2 * i])
end
"""
)


class RedisUsage:
    """As `UsageStore` says."""

    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection

    async def add(self, batch: UsageBatch) -> None:
        keys, counts = [key("usage", "batch", quoted(batch.writer))], []
        for (tenant, app), usage in batch.usage.items():
            for name in _COUNTS:
                if amount := getattr(usage, name):
                    keys.append(_key(tenant))
                    counts += [f"{app}:{name}", amount]
        await self._connection.run(_ADD(keys, batch.number, _BATCH_MS, *counts))

    async def of(self, tenant: str) -> TenantUsage:
        reply = await self._connection.run(command("HGETALL", _key(tenant)))
        stored = {name.decode(): int(value) for name, value in reply.items()}
        since = stored.pop("since", None)
        by_app: dict[str, Usage] = {}
        for field, amount in stored.items():
            app, _, name = field.partition(":")
            if name in _COUNTS:
                setattr(by_app.setdefault(app, Usage()), name, amount)
        return TenantUsage(since, by_app)


def _key(tenant: str) -> str:
    return key("usage", "of", quoted(tenant))
