"""Token logs in Redis: two keys for each request, with a hash of tenant and request id for their tag.

    octavo:1:{HASH}:log      stream: the opening, then an entry for each part of the answer
    octavo:1:{HASH}:state    hash: owner, bytes of the entries, `ended` where the answer is complete

Both expire together, so many seconds after the last write.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence

from services.state.redis.connection import RedisConnection
from services.state.redis.keys import framed, key
from services.state.redis.scripts import Script, command
from services.state.token_log import LogEntry, LoggedRequest, LogKey, TokenLogLimits

log = logging.getLogger(__name__)

# KEYS: log, state. ARGV: owner, opening, lifetime in ms. A full Redis refuses its first command.
_OPEN = Script("""
redis.call('HSET', KEYS[2], 'owner', ARGV[1], 'bytes', 0)
redis.call('HDEL', KEYS[2], 'ended')
redis.call('DEL', KEYS[1])
redis.call('XADD', KEYS[1], '*', 'd', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
""")

_LOST, _TOO_LARGE = -1, -2

# KEYS: log, state. ARGV: owner, lifetime in ms, most entries, most bytes, 1 if the last ones, then the entries.
# Returns 1, 0 where there is no such log, or one of the numbers above.
_APPEND = Script("""
local state = redis.call('HMGET', KEYS[2], 'owner', 'bytes')
local length = redis.call('XLEN', KEYS[1])
if not state[1] or length == 0 then return 0 end
if state[1] ~= ARGV[1] then return -1 end
local first, bytes = 6, tonumber(state[2])
for i = first, #ARGV do bytes = bytes + #ARGV[i] end
if length - 1 + #ARGV - first + 1 > tonumber(ARGV[3]) or bytes > tonumber(ARGV[4]) then
    redis.call('DEL', KEYS[1], KEYS[2])
    return -2
end
for i = first, #ARGV do redis.call('XADD', KEYS[1], '*', 'd', ARGV[i]) end
if #ARGV >= first then redis.call('HSET', KEYS[2], 'bytes', bytes) end
if ARGV[5] == '1' then redis.call('HSET', KEYS[2], 'ended', 1) end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return 1
""")

# KEYS: log, state. ARGV: owner, lifetime in ms. Returns nil, or 1 if ended, the opening, the entries.
_TAKE_OVER = Script("""
local records = redis.call('XRANGE', KEYS[1], '-', '+')
local state = redis.call('HMGET', KEYS[2], 'owner', 'ended')
if not state[1] or #records == 0 then return false end
redis.call('HSET', KEYS[2], 'owner', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
local reply = {state[2] and 1 or 0}
for i = 1, #records do reply[i + 1] = records[i][2][2] end
return reply
""")


class RedisTokenLog:
    """As `TokenLog` says."""

    def __init__(self, connection: RedisConnection, limits: TokenLogLimits) -> None:
        self._connection = connection
        self._limits = limits
        self._lifetime = round(limits.seconds * 1000)

    async def open(self, key: LogKey, owner: str, opening: bytes) -> None:
        if len(opening) > self._limits.max_opening_bytes:
            log.warning("a request is too large for the token log and can't be resumed", extra={"bytes": len(opening)})
            await self._connection.run(command("DEL", *_keys(key)))
            return
        await self._connection.run(_OPEN(_keys(key), owner, opening, self._lifetime))

    async def append(self, entries: Sequence[LogEntry]) -> set[LogKey]:
        batches: dict[tuple[LogKey, str], list[LogEntry]] = defaultdict(list)
        for entry in entries:
            batches[entry.key, entry.owner].append(entry)
        if not batches:
            return set()
        bounds = (self._lifetime, self._limits.max_entries, self._limits.max_bytes)
        commands = [
            _APPEND(
                _keys(key), owner, *bounds, int(any(each.last for each in batch)), *(e.data for e in batch if e.data)
            )
            for (key, owner), batch in batches.items()
        ]
        outcomes = await self._connection.run_all(commands)
        if _TOO_LARGE in outcomes:
            log.warning("an answer is too long for the token log and can't be resumed any more")
        return {key for (key, _), outcome in zip(batches, outcomes, strict=True) if outcome == _LOST}

    async def missing(self, keys: Sequence[LogKey]) -> set[LogKey]:
        found = await self._connection.run_all([command("EXISTS", *_keys(key)) for key in keys]) if keys else []
        return {key for key, count in zip(keys, found, strict=True) if count < len(_keys(key))}

    async def take_over(self, key: LogKey, owner: str) -> LoggedRequest | None:
        reply = await self._connection.run(_TAKE_OVER(_keys(key), owner, self._lifetime))
        if reply is None:
            return None
        ended, opening, *entries = reply
        return LoggedRequest(opening, entries, bool(ended))


def _keys(key_: LogKey) -> list[str]:
    tag = framed(key_.tenant, key_.request_id)
    return [key(tag, "log"), key(tag, "state")]
