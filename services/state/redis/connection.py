"""The connection to one Redis, which all parts of the store share."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Sequence
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError

from services.config import ConfigError
from services.state.redis.availability import Availability
from services.state.redis.keys import PREFIX, SCHEMA, key
from services.state.redis.scripts import Command, command
from services.state.store import StateUnavailable

TIMEOUT_SECONDS = 1.0
"""For a connection to become free, to be made, and for each answer."""

MAX_CONNECTIONS = 8
PROBE_SECONDS = 0.5
"""Between probes of a store that is not available."""

NUM_QUIET_PROBES = 10
"""One that is available is probed every so many times `PROBE_SECONDS`."""

MAX_REASON = 300

_SCHEMA_KEY = f"{PREFIX}{{store}}:schema"
_PROBE_KEY = key("store", "probe")

# Plain commands, for Redis 6.2 asks for its `min-replicas-to-write` before those only, and not within a script.
_PROBE = (
    command("SET", _SCHEMA_KEY, SCHEMA, "NX"),
    command("GET", _SCHEMA_KEY),
    command("SET", _PROBE_KEY, 1, "PX", 60_000),
)

_FAILURES = (RedisError, OSError, EOFError, asyncio.TimeoutError)


class RedisConnection:
    """A pool of connections, the scripts, and whether all that works.

    While Redis can't be reached, commands fail at once and a probe looks for it; while it refuses writes, commands are
    tried. What the probe does is a write, so a full or read-only Redis counts as not available.

    Args:
        url: `redis://`, `rediss://` or `unix://`, without a password.
        password: kept out of every message.
    """

    def __init__(self, url: str, password: str | None = None) -> None:
        self.availability = Availability()
        self._password = password
        self._watch: asyncio.Task[None] | None = None
        self._exchanges: set[asyncio.Task[list[Any]]] = set()
        pool = BlockingConnectionPool.from_url(
            url,
            password=password,
            protocol=2,
            max_connections=MAX_CONNECTIONS,
            timeout=TIMEOUT_SECONDS,
            socket_timeout=TIMEOUT_SECONDS,
            socket_connect_timeout=TIMEOUT_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
        self._redis = Redis.from_pool(pool)

    async def start(self) -> None:
        """Looks whether Redis is there, and goes on looking.

        Raises:
            ConfigError: another version of the program has written it, with a schema that this one does not know.
        """
        try:
            await self._probe()
        except OtherSchema as error:
            await self._redis.aclose()
            raise ConfigError(f"state: {error}") from None
        self._watch = asyncio.create_task(self._keep_watch())

    async def close(self) -> None:
        """Ends all of it."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        if self._exchanges:
            await asyncio.wait(self._exchanges)
        await self._redis.aclose()

    async def run(self, command: Command) -> Any:
        """Runs one command and returns its reply as redis-py makes it, strings as bytes.

        Raises:
            StateUnavailable: it may have been done or not.
        """
        return (await self.run_all([command]))[0]

    async def run_all(self, commands: Sequence[Command]) -> list[Any]:
        """Runs commands in order in one round trip, each atomic by itself, and returns their replies.

        Raises:
            StateUnavailable: each of them may have been done or not.
        """
        assert self._watch is not None, "the store is not started"
        if not self.availability.reachable:
            raise StateUnavailable(self.availability.reason)
        return await self._run_all(commands)

    async def _run_all(self, commands: Sequence[Command]) -> list[Any]:
        """Runs commands in a task of their own, which goes on to its end if the caller is cancelled.

        In the library a cancellation can get lost: before Python 3.12 `asyncio.wait_for` forgets it, if what it waits
        for is done at that very moment.
        """
        exchange = asyncio.create_task(self._exchange(commands))
        self._exchanges.add(exchange)
        exchange.add_done_callback(self._forget)
        return await asyncio.shield(exchange)

    def _forget(self, exchange: asyncio.Task[list[Any]]) -> None:
        self._exchanges.discard(exchange)
        if not exchange.cancelled():
            exchange.exception()  # whoever waits for it gets it too; if nobody does, it is no news

    async def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        try:
            replies = await self._send(commands)
            unknown = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
            if unknown:
                again = await self._send_with_scripts([commands[i] for i in unknown])
                for i, reply in zip(unknown, again, strict=True):
                    replies[i] = reply
            for reply in replies:
                if isinstance(reply, ResponseError):
                    raise reply
        except _FAILURES as error:
            reason = self._describe(error)
            self.availability.lost(reason, reachable=isinstance(error, ResponseError))
            # Without its cause: messages of the library or the server may hold the password.
            raise StateUnavailable(reason) from None
        return replies

    async def _send(self, commands: Sequence[Command]) -> list[Any]:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for each in commands:
                pipeline.execute_command(*each.words)
            try:
                return await pipeline.execute(raise_on_error=False)
            except RuntimeError as error:
                # uvloop's word for a connection that was reset while nobody used it; redis-py lets that through.
                raise ConnectionResetError(str(error)) from None

    async def _send_with_scripts(self, commands: Sequence[Command]) -> list[Any]:
        """Runs commands after loading the scripts that they run."""
        scripts = {each.script.sha: each.script for each in commands if each.script}
        loads = [command("SCRIPT", "LOAD", script.source) for script in scripts.values()]
        replies = await self._send([*loads, *commands])
        for reply in replies[: len(loads)]:
            if isinstance(reply, ResponseError):
                raise reply
        return replies[len(loads) :]

    async def _probe(self) -> None:
        try:
            _, schema, _ = await self._run_all(_PROBE)
        except StateUnavailable:
            return
        if schema != b"%d" % SCHEMA:
            stored = schema.decode("utf-8", "replace")
            message = f"the store was written by another version (schema {stored}; this one knows {SCHEMA})"
            self.availability.lost(message, reachable=False)
            raise OtherSchema(message)
        self.availability.restored()

    async def _keep_watch(self) -> None:
        for turn in itertools.count(1):
            await asyncio.sleep(PROBE_SECONDS)
            if not self.availability.available or turn % NUM_QUIET_PROBES == 0:
                with contextlib.suppress(OtherSchema):
                    await self._probe()

    def _describe(self, error: BaseException) -> str:
        text = str(error) or type(error).__name__
        if self._password:
            text = text.replace(self._password, "***")
        return text[:MAX_REASON]


class OtherSchema(Exception):
    """The store is of a schema that this program does not know."""
