"""Pins in Redis.

octavo:1:{GROUP}:pins    hash: PIN ID -> `END ORDER`, END in ms of Redis's clock; expires with the last one's END
"""

from __future__ import annotations

from collections.abc import Sequence

from services.state.pins import StoredPin
from services.state.redis.connection import RedisConnection
from services.state.redis.keys import key, quoted
from services.state.redis.scripts import FORGET_ENDED, NOW, Script, command

# KEYS: pins. ARGV: pin id, time left in ms, order. Forgets those whose time is over.
_PUT = Script(
    NOW
    + """
local left = math.max(tonumber(ARGV[2]), redis.call('PTTL', KEYS[1]))
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now + ARGV[2]) .. ' ' .. ARGV[3])
redis.call('PEXPIRE', KEYS[1], left)
"""
    + FORGET_ENDED
)

# KEYS: pins. Returns pin id, ms left and order in turns.
_LIST = Script(
    NOW
    + """
local all, found = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #all, 2 do
    local value = all[i + 1]
    local pin_end = string.match(value, '^%d+')
    if tonumber(pin_end) > now then
        found[#found + 1] = all[i]
        found[#found + 1] = string.format('%.0f', pin_end - now)
        found[#found + 1] = string.sub(value, #pin_end + 2)
    end
end
return found
"""
)


class RedisPinStore:
    """As `PinStore` says."""

    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection

    async def put(self, group: str, pin: StoredPin) -> None:
        await self._connection.run(_PUT([_key(group)], pin.pin_id, max(1, round(pin.seconds_left * 1000)), pin.order))

    async def remove(self, group: str, pin_id: str) -> None:
        await self._connection.run(command("HDEL", _key(group), pin_id))

    async def list(self, group: str) -> Sequence[StoredPin]:
        words = await self._connection.run(_LIST([_key(group)]))
        triples = zip(words[::3], words[1::3], words[2::3], strict=True)
        pins = [StoredPin(name.decode("utf-8", "replace"), int(left) / 1000, order) for name, left, order in triples]
        return sorted(pins, key=lambda each: each.pin_id)


def _key(group: str) -> str:
    return key(quoted(group), "pins")
