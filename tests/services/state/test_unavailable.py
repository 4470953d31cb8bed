"""A Redis that is away, full, read-only, emptied, or not ours: nothing hangs, nothing is torn, health says so."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import uuid4

import pytest
import redis
import uvloop

from gateway.tenants import Tenant
from services.config import ConfigError
from services.state.leadership import Holder
from services.state.pins import StoredPin
from services.state.redis import connection
from services.state.store import StateStore, StateUnavailable, open_store
from services.state.tenants import Usage, UsageBatch
from services.state.token_log import LogEntry, LogKey
from tests.ports import free_port
from tests.services.e2e.redis_server import RedisServer
from tests.services.state.conftest import MakeRedis, OpenStore
from tests.services.state.waiting import PATIENCE, eventually
from tests.tcp_proxy import TcpProxy

HOLDER, OTHER = Holder("10.0.0.1:50052", "a1"), Holder("10.0.0.2:50052", "b1")
KEY = LogKey("acme", "1")
BLOCK = b"8 bytes!"
TENANT = Tenant("acme", requests_per_minute=6, tokens_per_minute=60, max_concurrent=1000)
SECRET = "s3cr3t/@:%p"


async def begin(store: StateStore) -> None:
    assert store.limits is not None
    await store.limits.begin(TENANT, 5, uuid4().hex)


WRITES: dict[str, Callable[[StateStore], Awaitable[object]]] = {
    "lead": lambda store: store.leadership.lead("new", HOLDER, 30),
    "next_epoch": lambda store: store.leadership.next_epoch("g", HOLDER, 0),
    "register": lambda store: store.executors.register("g", "10.0.0.3:1", "i"),
    "put": lambda store: store.pins.put("g", StoredPin("p", 60, b"order")),
    "open": lambda store: store.requests.open(LogKey("acme", "2"), "g1", b"x"),
    "open again": lambda store: store.requests.open(KEY, "g2", b"x"),
    "append": lambda store: store.requests.append([LogEntry(KEY, "g1", b"x")]),
    "end": lambda store: store.requests.append([LogEntry(KEY, "g1", b"", True)]),
    "take_over": lambda store: store.requests.take_over(KEY, "g2"),
    "publish": lambda store: store.prefixes.publish("m", "g", [BLOCK], []),
    "publish first": lambda store: store.prefixes.publish("m", "new", [BLOCK], []),
    "add a tenant": lambda store: store.tenants.change("acme", lambda _: TENANT),
    "begin a tenant's request": lambda store: begin(store),
    "use": lambda store: store.usage.add(UsageBatch("g1", time.time_ns(), {("acme", "app"): Usage(requests=1)})),
}
READS: dict[str, Callable[[StateStore], Awaitable[object]]] = {
    "leader": lambda store: store.leadership.leader("g"),
    "list": lambda store: store.executors.list("g"),
    "pins": lambda store: store.pins.list("g"),
    "longest": lambda store: store.prefixes.longest("m", [BLOCK]),
    "all tenants": lambda store: store.tenants.all(),
    "usage": lambda store: store.usage.of("acme"),
}


class Watched:
    """A store with something of each part in it, and what it said of its availability."""

    def __init__(self, store: StateStore, caplog: pytest.LogCaptureFixture) -> None:
        self.store = store
        self.changes: list[bool] = []
        self._caplog = caplog
        caplog.set_level(logging.INFO)
        store.on_change(self.changes.append)

    async def fill(self) -> None:
        assert await self.store.leadership.lead("g", HOLDER, 60)
        await self.store.executors.register("g", "10.0.0.3:1", "i")
        await self.store.requests.open(KEY, "g1", b"opening")
        await self.store.prefixes.publish("m", "g", [BLOCK], [])

    async def refuses(self, operations: dict[str, Callable[[StateStore], Awaitable[object]]]) -> None:
        for name, operation in operations.items():
            with pytest.raises(StateUnavailable) as caught:
                print(name, await operation(self.store))
            assert str(caught.value)

    async def goes_away(self) -> None:
        await eventually(lambda: not self.store.available, "noticing by itself")

    async def comes_back(self) -> None:
        await eventually(lambda: self.store.available, "noticing that it is back")
        assert self.changes == [False, True]
        levels = [record.levelname for record in self._caplog.records if "state store" in record.message]
        assert levels == ["WARNING", "INFO"], "one line when it goes and one when it is back"


@pytest.fixture
async def watched(redis_server: RedisServer, open_redis: OpenStore, caplog: pytest.LogCaptureFixture) -> Watched:
    watched = Watched(await open_redis(redis_server.url), caplog)
    await watched.fill()
    return watched


async def test_redis_is_killed_and_started_empty(
    make_redis: MakeRedis, open_redis: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_redis()
    watched = Watched(await open_redis(server.url), caplog)
    await watched.fill()
    assert await watched.store.leadership.next_epoch("g", HOLDER, 6) == 7
    server.kill()
    await watched.refuses(WRITES | READS)
    server.start()
    await watched.comes_back()
    assert not await watched.store.requests.append([LogEntry(KEY, "g1", b"x")]), "nobody took it over"
    assert await watched.store.requests.take_over(KEY, "g2") is None, "a log without its head is no log"
    assert not await watched.store.prefixes.refresh("m", "g")
    await watched.fill()
    assert await watched.store.leadership.next_epoch("g", HOLDER, 7) == 8


async def test_redis_with_persistence_forgets_nothing(
    make_redis: MakeRedis, open_redis: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_redis(appendonly="yes")
    watched = Watched(await open_redis(server.url), caplog)
    await watched.fill()
    assert await watched.store.leadership.next_epoch("g", HOLDER, 6) == 7
    server.kill()
    await watched.goes_away()
    server.start()
    await watched.comes_back()
    assert await watched.store.leadership.next_epoch("g", HOLDER, 0) == 8
    assert not await watched.store.leadership.lead("g", OTHER, 60)
    assert await watched.store.requests.append([LogEntry(KEY, "g1", b"x")]) == set()
    logged = await watched.store.requests.take_over(KEY, "g2")
    assert logged is not None
    assert (logged.opening, logged.entries) == (b"opening", [b"x"])


@pytest.mark.parametrize("seed", [random.randrange(2**32)])
async def test_a_log_written_while_redis_dies_again_and_again_has_no_gap(make_redis: MakeRedis, seed: int) -> None:
    """What was not acknowledged is written again; only whole batches are there twice."""
    chance = random.Random(seed)
    server = make_redis(appendonly="yes")
    store = open_store(server.url)
    await store.start()
    await store.requests.open(KEY, "g1", b"opening")
    batches = [[b"%d" % number for number in range(start, start + 3)] for start in range(0, 300, 3)]
    written = 0

    async def write() -> None:
        nonlocal written
        while written < len(batches):
            try:
                assert await store.requests.append([LogEntry(KEY, "g1", data) for data in batches[written]]) == set()
                written += 1
            except StateUnavailable:
                await asyncio.sleep(0.01)

    writing = asyncio.create_task(write())
    for death in range(1, 4):
        await eventually(lambda death=death: written >= death * 25, "some progress")  # type: ignore[misc]
        await asyncio.sleep(chance.random() * 0.005)
        server.kill()
        server.start()
    await writing
    logged = await store.requests.take_over(KEY, "g2")
    assert logged is not None
    seen = [logged.entries[start : start + 3] for start in range(0, len(logged.entries), 3)]
    assert [batch for batch, _ in itertools.groupby(seen)] == batches, f"seed {seed}"
    await store.close()


async def test_redis_hangs(
    redis_server: RedisServer, open_redis: OpenStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "TIMEOUT_SECONDS", 0.5)
    watched = Watched(await open_redis(redis_server.url), caplog)
    await watched.fill()
    redis_server.pause()
    try:
        calls = [asyncio.ensure_future(each(watched.store)) for each in (WRITES | READS).values()]
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(each, StateUnavailable) for each in done)
        await watched.refuses(WRITES | READS)  # at once by now
    finally:
        redis_server.go_on()
    await watched.comes_back()


async def test_the_network_between_is_parted(
    redis_server: RedisServer, open_redis: OpenStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "TIMEOUT_SECONDS", 0.5)
    network = TcpProxy(redis_server.url.removeprefix("redis://").removesuffix("/0"))
    await network.start()
    watched = Watched(await open_redis(f"redis://{network.address}/0"), caplog)
    await watched.fill()
    network.freeze()
    await watched.goes_away()
    await watched.refuses(WRITES | READS)
    network.heal()
    await watched.comes_back()
    assert await watched.store.requests.append([LogEntry(KEY, "g1", b"x")]) == set()
    await network.stop()


async def test_redis_is_full(watched: Watched, redis_server: RedisServer) -> None:
    redis_server.client.config_set("maxmemory", "1kb")
    try:
        await watched.goes_away()
        await watched.refuses(WRITES)
        assert await watched.store.leadership.leader("g") == HOLDER, "reading goes on"
        assert await watched.store.prefixes.longest("m", [BLOCK]) == {"g": 1}
        assert len(await watched.store.executors.list("g")) == 1
        assert await watched.store.leadership.lead("g", HOLDER, 60), "who leads may go on"
        assert not await watched.store.leadership.lead("g", OTHER, 60)
    finally:
        redis_server.client.config_set("maxmemory", "0")
    await watched.comes_back()
    logged = await watched.store.requests.take_over(KEY, "g2")
    assert logged is not None
    assert (logged.opening, logged.entries, logged.ended) == (b"opening", [], False), "nothing was half done"
    assert await watched.store.leadership.next_epoch("g", HOLDER, 0) == 1


def fail_to_save(redis: redis.Redis) -> None:
    """As on a full disk: with snapshots configured, Redis takes no writes after one that failed."""
    redis.config_set("dbfilename", "folder")
    (Path(redis.config_get("dir")["dir"]) / "folder").mkdir(exist_ok=True)
    redis.config_set("save", "3600 1")
    redis.bgsave()


MAKE_READ_ONLY: dict[str, Callable[[redis.Redis], object]] = {
    "replica": lambda redis: redis.execute_command("REPLICAOF", "127.0.0.1", "1"),
    "too few replicas": lambda redis: redis.config_set("min-replicas-to-write", "1"),
    "failing snapshots": fail_to_save,
}


@pytest.mark.parametrize("how", MAKE_READ_ONLY)
async def test_redis_is_read_only(watched: Watched, redis_server: RedisServer, how: str) -> None:
    redis = redis_server.client
    MAKE_READ_ONLY[how](redis)
    try:
        await watched.goes_away()
        if how != "too few replicas":  # within scripts, Redis 6.2 does not ask for that
            await watched.refuses(WRITES)
        assert await watched.store.leadership.leader("g") == HOLDER, "reading goes on"
    finally:
        redis.execute_command("REPLICAOF", "NO", "ONE")
        redis.config_set("min-replicas-to-write", "0")
        redis.config_set("save", "")
    await watched.comes_back()
    assert await watched.store.requests.append([LogEntry(KEY, "g1", b"x")]) == set()


async def test_whoever_is_cancelled_in_the_middle_of_a_call_ends(
    redis_server: RedisServer, open_redis: OpenStore
) -> None:
    store = await open_redis(redis_server.url)

    async def use() -> None:
        while True:
            await store.executors.register("g", "10.0.0.3:1", "i")

    for _ in range(300):
        task = asyncio.create_task(use())
        await asyncio.sleep(random.random() * 0.002)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=PATIENCE)
        assert done
    assert store.available
    await store.executors.list("g")


async def test_redis_forgets_the_scripts(watched: Watched, redis_server: RedisServer) -> None:
    for operation in WRITES.values():
        redis_server.client.script_flush()
        await operation(watched.store)
    assert watched.changes == []


async def test_a_store_that_is_away_at_the_start_is_no_error(
    make_redis: MakeRedis, open_redis: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_redis()
    server.kill()
    store = await open_redis(server.url)
    assert not store.available
    watched = Watched(store, caplog)
    await watched.refuses(WRITES | READS)
    server.start()
    await eventually(lambda: watched.changes == [True], "noticing that it is there")
    await watched.fill()


async def test_a_store_of_another_schema_is_refused(
    watched: Watched, redis_server: RedisServer, open_redis: OpenStore
) -> None:
    assert redis_server.client.get("octavo:{store}:schema") == str(connection.SCHEMA)
    redis_server.client.set("octavo:{store}:schema", connection.SCHEMA + 1)
    await watched.goes_away()
    with pytest.raises(StateUnavailable, match="another version"):
        await watched.store.executors.list("g")
    redis_server.client.set("octavo:{store}:schema", connection.SCHEMA)
    await watched.comes_back()
    redis_server.client.set("octavo:{store}:schema", connection.SCHEMA + 1)
    with pytest.raises(ConfigError, match="another version"):
        await open_redis(redis_server.url)


@pytest.fixture(scope="module")
def guarded_redis(make_redis: MakeRedis) -> RedisServer:
    server = make_redis()
    server.client.config_set("requirepass", SECRET)
    return server


async def test_the_password_opens_the_store(guarded_redis: RedisServer, open_redis: OpenStore) -> None:
    store = await open_redis(guarded_redis.url, SECRET)
    await store.executors.register("g", "10.0.0.3:1", "i")
    assert store.available


@pytest.mark.parametrize("password", [None, "wr0ng/@:%p"])
async def test_a_wrong_password_is_not_repeated(
    guarded_redis: RedisServer, open_redis: OpenStore, caplog: pytest.LogCaptureFixture, password: str | None
) -> None:
    store = await open_redis(guarded_redis.url, password)
    with pytest.raises(StateUnavailable, match=r"(?i)auth|password") as caught:
        await store.executors.list("g")
    said = f"{caught.value} {caught.value.__cause__} {[vars(record) for record in caplog.records]}"
    assert SECRET not in said
    assert password is None or password not in said


async def test_what_the_server_says_does_not_give_it_away(
    make_redis: MakeRedis, open_redis: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that knows no AUTH repeats what came with it."""
    server = make_redis(**{"rename-command": "AUTH OTHERWISE"})
    store = await open_redis(server.url, SECRET)
    with pytest.raises(StateUnavailable, match="unknown command") as caught:
        await store.executors.list("g")
    assert SECRET not in f"{caught.value} {[vars(record) for record in caplog.records]}"


def test_no_connection_is_made_before_the_start() -> None:
    open_store(f"redis://127.0.0.1:{free_port()}/0", "password")


def test_connections_that_are_reset_while_nothing_happens(redis_server: RedisServer) -> None:
    """On the event loop that the services run on, which has words of its own for that."""

    async def look() -> None:
        proxy = TcpProxy(redis_server.address)
        await proxy.start()
        store = open_store(redis_server.url.replace(redis_server.address, proxy.address))
        await store.start()
        try:
            for _ in range(20):
                proxy.reset()
                await eventually(lambda: proxy.num_connections == 0, "the reset")
                with contextlib.suppress(StateUnavailable):
                    await store.leadership.lead("tiny", HOLDER, 5.0)
                await eventually(lambda: store.available, "the store is back")
        finally:
            await store.close()
            await proxy.stop()

    uvloop.run(look())
