"""What tenants use of their limits, in Redis. Its clock is the only one that counts.

octavo:1:{tenant/NAME}:requests    string: when the bucket of requests will have drained, in ms; expires then
octavo:1:{tenant/NAME}:tokens      the same for tokens
octavo:1:{tenant/NAME}:running     sorted set: LEASE of each request, by when it ends unless it is renewed, in ms;
                                   expires with the last. Kept for tenants that have `max_concurrent`.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.rate_limits import (
    CONCURRENT_RETRY_SECONDS,
    MAX_CONCURRENT,
    REQUESTS_PER_MINUTE,
    TOKENS_PER_MINUTE,
    LimitExceeded,
)
from gateway.tenants import Tenant
from services.state.limits import LEASE_SECONDS, TenantNews
from services.state.redis.connection import RedisConnection
from services.state.redis.keys import key, quoted
from services.state.redis.scripts import NOW, Command, Script

_LEASE_MS = round(LEASE_SECONDS * 1000)

_BUCKETS = (
    NOW
    + """
local minute = 60000
local function filled(bucket, amount, per_minute)
    return math.max(now, tonumber(redis.call('GET', bucket) or '0')) + amount * minute / per_minute
end
local function keep(bucket, drained_at)
    redis.call('SET', bucket, string.format('%.3f', drained_at), 'PX', math.max(1, math.ceil(drained_at - now)))
end
local function hold(leases, lease, milliseconds)
    redis.call('ZADD', leases, now + milliseconds, lease)
    redis.call('PEXPIRE', leases, milliseconds)
end
"""
)

# KEYS: requests, tokens, running. ARGV: requests per minute, tokens per minute, max concurrent, prompt tokens, lease,
# lease in ms; a limit of 0 is none. Returns nothing, or the number of the limit and the ms to wait, -1 for ever.
_BEGIN = Script(
    _BUCKETS
    + """
local amounts, full = {1, tonumber(ARGV[4])}, {}
for i = 1, 2 do
    local per_minute = tonumber(ARGV[i])
    if per_minute > 0 then
        if amounts[i] > per_minute then return {i, -1} end
        full[i] = filled(KEYS[i], amounts[i], per_minute)
        local wait = full[i] - now - minute
        if wait > 0.001 then return {i, math.ceil(wait)} end
    end
end
local most = tonumber(ARGV[3])
if most > 0 and redis.call('ZCOUNT', KEYS[3], string.format('(%.0f', now), '+inf') >= most then return {3, 0} end
for i = 1, 2 do
    if full[i] then keep(KEYS[i], full[i]) end
end
if most > 0 then
    hold(KEYS[3], ARGV[5], ARGV[6])
    redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
end
"""
)

# KEYS: tokens, running. ARGV: tokens per minute, generated tokens, lease in ms, number of running leases; these; those
# that ended.
_TELL = Script(
    _BUCKETS
    + """
local per_minute, tokens, last = tonumber(ARGV[1]), tonumber(ARGV[2]), 4 + ARGV[4]
if per_minute > 0 and tokens > 0 then keep(KEYS[1], filled(KEYS[1], tokens, per_minute)) end
for i = 5, last do hold(KEYS[2], ARGV[i], ARGV[3]) end
for i = last + 1, #ARGV do redis.call('ZREM', KEYS[2], ARGV[i]) end
"""
)


class RedisLimits:
    """As `SharedLimits` says."""

    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection

    async def begin(self, tenant: Tenant, prompt_tokens: int, lease: str) -> None:
        keys = [_key(tenant, name) for name in ("requests", "tokens", "running")]
        limits = (tenant.requests_per_minute, tenant.tokens_per_minute, tenant.max_concurrent)
        refusal = await self._connection.run(_BEGIN(keys, *limits, prompt_tokens, lease, _LEASE_MS))
        if refusal is not None:
            raise _exceeded(tenant, *refusal)

    async def tell(self, news: Sequence[TenantNews]) -> None:
        await self._connection.run_all([_telling(each) for each in news])


def _telling(news: TenantNews) -> Command:
    keys = [_key(news.tenant, name) for name in ("tokens", "running")]
    running = news.running if news.tenant.max_concurrent else ()
    limit = news.tenant.tokens_per_minute
    return _TELL(keys, limit, news.tokens, _LEASE_MS, len(running), *running, *news.ended)


def _exceeded(tenant: Tenant, number: int, milliseconds: int) -> LimitExceeded:
    if number == 3:
        return LimitExceeded(MAX_CONCURRENT, tenant.max_concurrent, CONCURRENT_RETRY_SECONDS)
    limit = (REQUESTS_PER_MINUTE, TOKENS_PER_MINUTE)[number - 1]
    return LimitExceeded(limit, getattr(tenant, limit), None if milliseconds < 0 else milliseconds / 1000)


def _key(tenant: Tenant, name: str) -> str:
    return key(quoted(f"tenant/{tenant.name}"), name)
