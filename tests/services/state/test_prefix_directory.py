"""Which groups have how much of a prompt cached."""

from __future__ import annotations

import hashlib
import random

import pytest

import services.state.embedded.prefix_directory
import services.state.redis.prefix_directory
from services.state.store import StateStore
from tests.services.e2e.redis_server import RedisServer
from tests.services.state.conftest import OpenStore
from tests.services.state.waiting import eventually

MODULES = (services.state.embedded.prefix_directory, services.state.redis.prefix_directory)
CHAIN = [hashlib.sha256(b"%d" % number).digest() for number in range(6)]


async def test_groups_are_found_by_what_they_have(open_view: OpenStore) -> None:
    writer, reader = (await open_view()).prefixes, (await open_view()).prefixes
    assert await reader.longest("m", CHAIN) == {}
    assert not await writer.publish("m", "a", CHAIN[:4], []), "there was nothing of it before"
    assert await writer.publish("m", "a", [], [CHAIN[2]])
    assert await reader.longest("m", CHAIN) == {"a": 2}
    await writer.publish("m", "b", CHAIN, [])
    await writer.publish("m", "c", CHAIN[1:], [])
    await writer.publish("another model", "d", CHAIN, [])
    assert await reader.longest("m", CHAIN) == {"a": 2, "b": 6}
    assert await reader.longest("m", CHAIN[1:]) == {"a": 1, "b": 5, "c": 5}
    assert await reader.longest("m", []) == {}
    assert await writer.publish("m", "a", [CHAIN[2]], [CHAIN[2]]), "what is in both is there"
    assert await reader.longest("m", CHAIN) == {"a": 4, "b": 6}


async def test_a_cleared_group_has_nothing(store: StateStore) -> None:
    await store.prefixes.publish("m", "a", CHAIN, [])
    await store.prefixes.publish("m", "b", CHAIN[:1], [])
    await store.prefixes.clear("m", "a")
    assert await store.prefixes.longest("m", CHAIN) == {"b": 1}
    assert not await store.prefixes.refresh("m", "a")
    assert await store.prefixes.refresh("m", "b")
    assert not await store.prefixes.publish("m", "a", CHAIN[:1], [])
    assert await store.prefixes.longest("m", CHAIN) == {"a": 1, "b": 1}


async def test_a_group_that_does_not_refresh_has_nothing(store: StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for group in ("goes", "stays"):
        await store.prefixes.publish("m", group, CHAIN, [])
    for module in MODULES:
        monkeypatch.setattr(module, "LEASE_SECONDS", 0.03)
    assert await store.prefixes.refresh("m", "goes")
    monkeypatch.undo()

    async def one_left() -> bool:
        assert await store.prefixes.refresh("m", "stays")
        return await store.prefixes.longest("m", CHAIN) == {"stays": 6}

    await eventually(one_left, "the end of a lease")
    assert not await store.prefixes.publish("m", "goes", CHAIN[:2], []), "everything is to be published anew"
    assert await store.prefixes.longest("m", CHAIN) == {"goes": 2, "stays": 6}


async def test_an_empty_cache_is_known_too(store: StateStore) -> None:
    assert not await store.prefixes.publish("m", "a", [], [])
    assert await store.prefixes.publish("m", "a", [], [])
    assert await store.prefixes.refresh("m", "a")
    assert await store.prefixes.longest("m", CHAIN) == {}


async def test_many_blocks_and_no_more_than_the_bound(store: StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [random.randbytes(32) for _ in range(2500)]
    for module in MODULES:
        monkeypatch.setattr(module, "MAX_BLOCKS", 2400)
    await store.prefixes.publish("m", "a", blocks, [])
    lengths = await store.prefixes.longest("m", blocks)
    assert 2400 - 2500 / 128 < lengths["a"] <= 2400, "bounded, and a little less may be said of a long prompt"
    await store.prefixes.publish("m", "a", blocks[2400:], blocks[2350:2400])
    lengths = await store.prefixes.longest("m", blocks)
    assert 2350 - 2500 / 128 < lengths["a"] <= 2350
    assert await store.prefixes.longest("m", blocks[2400:]) == {"a": 50}
    for length in (1, 127, 128, 129, 130, 255, 256, 257, 385, 1000, 2350):
        assert await store.prefixes.longest("m", blocks[:length]) == {"a": length}


async def test_a_redis_that_lost_everything_says_so(redis_server: RedisServer, open_redis: OpenStore) -> None:
    prefixes = (await open_redis(redis_server.url)).prefixes
    await prefixes.publish("m", "a", CHAIN, [])
    assert await prefixes.longest("m", CHAIN) == {"a": 6}
    redis_server.client.flushall()
    assert await prefixes.longest("m", CHAIN) == {}
    assert not await prefixes.refresh("m", "a")
    assert not await prefixes.publish("m", "a", CHAIN[:1], [])
    assert await prefixes.longest("m", CHAIN) == {"a": 1}
