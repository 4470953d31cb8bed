"""State in Redis (commands of 6.2).

Keys, all under one prefix with a schema version, a model's keys in one hash slot:

    octavo:1:{MODEL}:epoch               integer, INCR and INCRBY: the fencing epoch
    octavo:1:{MODEL}:executor:ADDRESS    incarnation of the executor there, expires with its lease
"""

from __future__ import annotations

import logging

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from services.state.store import LEASE_SECONDS, StateUnavailable

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 1.0


class RedisStore:
    """A connection pool to one Redis."""

    def __init__(self, url: str) -> None:
        self._redis = redis.asyncio.Redis.from_url(
            url,
            socket_timeout=TIMEOUT_SECONDS,
            socket_connect_timeout=TIMEOUT_SECONDS,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
        )
        self._reachable = True

    async def next_epoch(self, model: str, above: int) -> int:
        key = f"octavo:1:{{{model}}}:epoch"
        try:
            epoch = int(await self._redis.incr(key))
            if epoch <= above:  # epochs were given out while this Redis was away, or it has lost some
                epoch = int(await self._redis.incrby(key, above + 1 - epoch))
            return epoch
        except (RedisError, OSError) as error:
            raise StateUnavailable(str(error)) from error

    async def register_executor(self, model: str, address: str, incarnation: str) -> None:
        try:
            await self._redis.set(f"octavo:1:{{{model}}}:executor:{address}", incarnation, ex=LEASE_SECONDS)
        except (RedisError, OSError) as error:
            self._note(False, str(error))
        else:
            self._note(True)

    async def close(self) -> None:
        await self._redis.aclose()

    def _note(self, reachable: bool, error: str = "") -> None:
        """One line when it goes and one when it comes back, not one for each try."""
        if reachable != self._reachable:
            self._reachable = reachable
            if reachable:
                log.info("state store is back")
            else:
                log.warning("state store is away; serving continues", extra={"error": error})
