"""Leadership in Redis. Its clock is the only one that counts.

octavo:1:{GROUP}:leader    string `INCARNATION@ADDRESS`, expires with the lease
octavo:1:{GROUP}:epoch     integer: the epoch given out last; never expires: one that was forgotten could be given out
                           twice
"""

from __future__ import annotations

from services.state.leadership import Holder, NotLeader
from services.state.redis.connection import RedisConnection
from services.state.redis.keys import key, quoted
from services.state.redis.scripts import Script, command

# KEYS: leader. ARGV: holder, lease in ms. Returns 1 if the holder has the lease now.
# Renewing works in a full Redis, taking does not.
_LEAD = Script("""
local leader = redis.call('GET', KEYS[1])
if leader == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
if leader then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
""")

# KEYS: leader. ARGV: holder.
_GIVE_UP = Script("""
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
""")

# KEYS: leader, epoch. ARGV: holder, the number to exceed. Returns the epoch, or nil where the holder does not lead.
# Numbers stay decimal text, compared by length first: Lua's own are exact to 2^53 only.
_NEXT_EPOCH = Script("""
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return false end
local epoch, above = redis.call('GET', KEYS[2]) or '0', ARGV[2]
if #epoch < #above or (#epoch == #above and epoch < above) then redis.call('SET', KEYS[2], above) end
redis.call('INCR', KEYS[2])
return redis.call('GET', KEYS[2])
""")


class RedisLeadership:
    """As `Leadership` says."""

    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection

    async def lead(self, group: str, holder: Holder, lease_seconds: float) -> bool:
        milliseconds = max(1, round(lease_seconds * 1000))
        return bool(await self._connection.run(_LEAD([_leader_key(group)], _encode(holder), milliseconds)))

    async def give_up(self, group: str, holder: Holder) -> None:
        await self._connection.run(_GIVE_UP([_leader_key(group)], _encode(holder)))

    async def next_epoch(self, group: str, holder: Holder, above: int) -> int:
        keys = [_leader_key(group), key(quoted(group), "epoch")]
        epoch = await self._connection.run(_NEXT_EPOCH(keys, _encode(holder), above))
        if epoch is None:
            raise NotLeader(f"{holder.address} does not lead {group}")
        return int(epoch)

    async def leader(self, group: str) -> Holder | None:
        value = await self._connection.run(command("GET", _leader_key(group)))
        return None if value is None else _decode(value)


def _leader_key(group: str) -> str:
    return key(quoted(group), "leader")


def _encode(holder: Holder) -> str:
    return f"{holder.incarnation}@{holder.address}"


def _decode(value: bytes) -> Holder:
    incarnation, _, address = value.decode("utf-8", "replace").partition("@")
    return Holder(address, incarnation)
