"""Tenants in Redis.

octavo:1:{tenants}:directory    hash: NAME -> tenant as JSON (`services.state.tenant_records`); keys as hashes only
octavo:1:{tenants}:version      string: another one with each change. No count: a Redis that comes back without its
                                last changes would count them again
"""

from __future__ import annotations

import secrets

from gateway.tenants import Tenant
from services.state.redis.connection import RedisConnection
from services.state.redis.keys import key
from services.state.redis.scripts import Script, command
from services.state.store import StateUnavailable
from services.state.tenant_records import BadRecord, dump_tenant, load_tenant
from services.state.tenants import Change

_DIRECTORY = key("tenants", "directory")
_VERSION = key("tenants", "version")

# KEYS: directory, version. ARGV: name, record as it was or '', record as it is to be, new version. Returns 1, or 0
# where another came between.
_REPLACE = Script("""
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
redis.call('SET', KEYS[2], ARGV[4])
return 1
""")


class RedisTenants:
    """As `TenantStore` says."""

    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection

    async def version(self) -> str:
        version: bytes | None = await self._connection.run(command("GET", _VERSION))
        return "" if version is None else version.decode("utf-8", "replace")

    async def all(self) -> list[Tenant]:
        records = await self._connection.run(command("HGETALL", _DIRECTORY))
        return [_load(name.decode("utf-8", "replace"), record) for name, record in records.items()]

    async def change(self, name: str, change: Change) -> Tenant:
        while True:
            record = await self._connection.run(command("HGET", _DIRECTORY, name)) or b""
            changed = change(_load(name, record) if record else None)
            script = _REPLACE([_DIRECTORY, _VERSION], name, record, dump_tenant(changed), secrets.token_hex(8))
            if await self._connection.run(script):
                return changed


def _load(name: str, record: bytes) -> Tenant:
    try:
        return load_tenant(name, record)
    except BadRecord as error:
        raise StateUnavailable(f"the store's directory: {error}") from error
