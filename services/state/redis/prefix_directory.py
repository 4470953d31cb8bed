"""The prefix directory in Redis.

octavo:1:{MODEL}:groups          sorted set: GROUP by the end of its lease in ms; expires with the last one
octavo:1:{MODEL}:blocks:GROUP    set: the first 8 bytes of each block's identity; expires with the group's lease
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from math import ceil

from services.state.prefix_directory import IDENTITY_BYTES, LEASE_SECONDS, MAX_BLOCKS
from services.state.redis.connection import RedisConnection
from services.state.redis.keys import key, quoted
from services.state.redis.scripts import NOW, Command, Script, command

CHUNK = 1000
"""Identities in one run of the script, which may not keep others waiting."""

NUM_EXACT = 128
"""So many blocks of a prompt are looked up one by one, and at most as many of the rest."""

# KEYS: groups, blocks. ARGV: group, lease in ms, most blocks, bytes of an identity, those added, those removed; each as
# one string, for so many words of a command would keep the event loop busy.
# Returns 1 if the group's lease had not ended.
_PUBLISH = Script(
    NOW
    + """
local group, lease, most, size = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local num_added, num_removed = #ARGV[5] / size, #ARGV[6] / size
local function split(identities, count)
    local parts = {}
    for i = 1, count do parts[i] = string.sub(identities, (i - 1) * size + 1, i * size) end
    return parts
end
local known = tonumber(redis.call('ZSCORE', KEYS[1], group) or '0') > now
redis.call('ZADD', KEYS[1], now + lease, group)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if not known then redis.call('DEL', KEYS[2]) end
if num_removed > 0 then redis.call('SREM', KEYS[2], unpack(split(ARGV[6], num_removed))) end
local num_fitting = math.min(num_added, most - redis.call('SCARD', KEYS[2]))
if num_fitting > 0 then redis.call('SADD', KEYS[2], unpack(split(ARGV[5], num_fitting))) end
redis.call('PEXPIRE', KEYS[1], lease)
redis.call('PEXPIRE', KEYS[2], lease)
return known and 1 or 0
"""
)

# KEYS: groups, blocks. ARGV: group, lease in ms. Returns 1 if the group's lease had not ended.
_REFRESH = Script(
    NOW
    + """
if tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or '0') <= now then return 0 end
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return 1
"""
)


class RedisPrefixDirectory:
    """As `PrefixDirectory` says."""

    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection
        self._groups: dict[str, list[str]] = {}  # by model, as seen last: those that are asked without knowing more

    async def publish(self, model: str, group: str, added: Sequence[bytes], removed: Sequence[bytes]) -> bool:
        chunks = [(b"", chunk) for chunk in _chunks(removed)] + [(chunk, b"") for chunk in _chunks(added)]
        replies = await self._connection.run_all(
            [
                _PUBLISH(_keys(model, group), group, _lease(), MAX_BLOCKS, IDENTITY_BYTES, come, gone)
                for come, gone in chunks or [(b"", b"")]
            ]
        )
        return bool(replies[0])

    async def refresh(self, model: str, group: str) -> bool:
        return bool(await self._connection.run(_REFRESH(_keys(model, group), group, _lease())))

    async def clear(self, model: str, group: str) -> None:
        groups, blocks = _keys(model, group)
        await self._connection.run_all([command("ZREM", groups, group), command("UNLINK", blocks)])

    async def longest(self, model: str, identities: Sequence[bytes]) -> Mapping[str, int]:
        if not identities:
            return {}
        positions = _positions(len(identities))
        wanted = [identities[position][:IDENTITY_BYTES] for position in positions]
        asked = self._groups.get(model, [])
        names, *replies = await self._connection.run_all(
            [command("ZRANGE", _groups_key(model), 0, -1), *(_look_up(model, group, wanted) for group in asked)]
        )
        held = dict(zip(asked, replies, strict=True))
        groups = [name.decode("utf-8", "surrogateescape") for name in names]
        new = [group for group in groups if group not in held]
        if new:
            found = await self._connection.run_all([_look_up(model, group, wanted) for group in new])
            held |= zip(new, found, strict=True)
        self._groups[model] = groups
        hits = {group: sum(takewhile(bool, held[group])) for group in groups}
        return {group: positions[count - 1] + 1 for group, count in hits.items() if count}


def _lease() -> int:
    return round(LEASE_SECONDS * 1000)


def _positions(total: int) -> list[int]:
    """Where to look in a prompt of so many blocks: at each of the first ones, at the last, and evenly between.

    A block's identity is made of those before it, and caches give up the end of a chain first, so a block that is there
    seldom follows one that is not.
    """
    step = max(1, ceil((total - NUM_EXACT) / NUM_EXACT))
    return [*range(min(total, NUM_EXACT)), *reversed(range(total - 1, NUM_EXACT - 1, -step))]


def _look_up(model: str, group: str, wanted: Sequence[bytes]) -> Command:
    return command("SMISMEMBER", _blocks_key(model, group), *wanted)


def _chunks(identities: Sequence[bytes]) -> list[bytes]:
    return [_joined(identities[start : start + CHUNK]) for start in range(0, len(identities), CHUNK)]


def _joined(identities: Sequence[bytes]) -> bytes:
    joined = b"".join([identity[:IDENTITY_BYTES] for identity in identities])
    if len(joined) != IDENTITY_BYTES * len(identities):
        raise ValueError(f"an identity has less than {IDENTITY_BYTES} bytes")
    return joined


def _keys(model: str, group: str) -> list[str]:
    return [_groups_key(model), _blocks_key(model, group)]


def _groups_key(model: str) -> str:
    return key(quoted(model), "groups")


def _blocks_key(model: str, group: str) -> str:
    return key(quoted(model), "blocks", quoted(group))
