"""The executor registry in Redis.

octavo:1:{GROUP}:executors    hash: ADDRESS -> `END INCARNATION`, END in ms of Redis's clock; expires with the last
"""

from __future__ import annotations

from collections.abc import Sequence

from services.state.executor_registry import LEASE_SECONDS, RegisteredExecutor
from services.state.redis.connection import RedisConnection
from services.state.redis.keys import key, quoted
from services.state.redis.scripts import FORGET_ENDED, NOW, Script, command

# KEYS: executors. ARGV: address, incarnation, lease in ms. Forgets those whose lease has ended.
_REGISTER = Script(
    NOW
    + """
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now + ARGV[3]) .. ' ' .. ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
"""
    + FORGET_ENDED
)

# KEYS: executors. Returns address and incarnation in turns.
_LIST = Script(
    NOW
    + """
local all, live = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #all, 2 do
    local lease_end, incarnation = string.match(all[i + 1], '^(%d+) (.*)$')
    if tonumber(lease_end) > now then
        live[#live + 1] = all[i]
        live[#live + 1] = incarnation
    end
end
return live
"""
)


class RedisExecutorRegistry:
    """As `ExecutorRegistry` says."""

    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection

    async def register(self, group: str, address: str, incarnation: str) -> None:
        await self._connection.run(_REGISTER([_key(group)], address, incarnation, round(LEASE_SECONDS * 1000)))

    async def remove(self, group: str, address: str) -> None:
        await self._connection.run(command("HDEL", _key(group), address))

    async def list(self, group: str) -> Sequence[RegisteredExecutor]:
        reply = await self._connection.run(_LIST([_key(group)]))
        words = [word.decode("utf-8", "replace") for word in reply]
        executors = [RegisteredExecutor(*pair) for pair in zip(words[::2], words[1::2], strict=True)]
        return sorted(executors, key=lambda each: each.address)


def _key(group: str) -> str:
    return key(quoted(group), "executors")
