"""Logs of requests: one writer at a time, nothing lost within a log, nothing shared between tenants."""

from __future__ import annotations

import asyncio
import random

import pytest

from services.state.embedded.store import EmbeddedStore
from services.state.store import StateStore, open_store
from services.state.token_log import LogEntry, LoggedRequest, LogKey, TokenLogLimits
from tests.services.e2e.redis_server import RedisServer
from tests.services.state.conftest import LIMITS, OpenStore
from tests.services.state.waiting import eventually

KEY = LogKey("acme", "request 1")


def entry(data: bytes, owner: str = "gateway 1", key: LogKey = KEY, last: bool = False) -> LogEntry:
    return LogEntry(key, owner, data, last)


async def test_what_one_gateway_wrote_another_reads(open_view: OpenStore) -> None:
    writer, reader = (await open_view()).requests, (await open_view()).requests
    opening = bytes(range(256))
    await writer.open(KEY, "gateway 1", opening)
    assert await writer.append([entry(b"\x00one"), entry(b"two\n")]) == set()
    assert await writer.append([entry(b"three", last=True)]) == set()
    assert await reader.take_over(KEY, "gateway 2") == LoggedRequest(opening, [b"\x00one", b"two\n", b"three"], True)


async def test_entries_of_many_requests_at_once(store: StateStore) -> None:
    keys = [LogKey("acme", str(number)) for number in range(30)]
    for key in keys:
        await store.requests.open(key, "g", key.request_id.encode())
    mixed = [LogEntry(key, "g", b"%d" % part, part == 2 and key == keys[7]) for part in range(3) for key in keys]
    assert await store.requests.append(mixed) == set()
    assert await store.requests.append([]) == set()
    for key in keys:
        logged = await store.requests.take_over(key, "h")
        assert logged == LoggedRequest(key.request_id.encode(), [b"0", b"1", b"2"], key == keys[7])


async def test_whoever_was_taken_over_from_is_told_and_writes_nothing(store: StateStore) -> None:
    other = LogKey("acme", "request 2")
    for key in (KEY, other):
        await store.requests.open(key, "gateway 1", b"opening")
    await store.requests.append([entry(b"before")])
    assert await store.requests.take_over(KEY, "gateway 2") == LoggedRequest(b"opening", [b"before"], False)
    assert await store.requests.append([entry(b"late"), entry(b"mine", key=other), entry(b"too late")]) == {KEY}
    assert await store.requests.append([entry(b"after", "gateway 2")]) == set()
    assert await store.requests.take_over(KEY, "gateway 3") == LoggedRequest(b"opening", [b"before", b"after"], False)
    assert await store.requests.append([entry(b"late", "gateway 2", last=True)]) == {KEY}
    assert await store.requests.take_over(other, "gateway 3") == LoggedRequest(b"opening", [b"mine"], False)


async def test_a_log_that_does_not_exist(store: StateStore) -> None:
    assert await store.requests.take_over(KEY, "g") is None
    assert await store.requests.append([entry(b"lost")]) == set(), "nobody took it over"
    assert await store.requests.take_over(KEY, "g") is None, "appending begins no log"


async def test_which_logs_are_missing(store: StateStore) -> None:
    here, gone = LogKey("acme", "here"), LogKey("acme", "gone")
    await store.requests.open(here, "g", b"opening")
    assert await store.requests.missing([here, gone]) == {gone}
    assert await store.requests.missing([]) == set()


async def test_a_name_used_again_begins_a_new_log(store: StateStore) -> None:
    await store.requests.open(KEY, "gateway 1", b"old")
    await store.requests.append([entry(b"old", last=True)])
    await store.requests.open(KEY, "gateway 2", b"new")
    assert await store.requests.append([entry(b"late")]) == {KEY}
    assert await store.requests.take_over(KEY, "g") == LoggedRequest(b"new", [], False)


async def test_no_two_pairs_of_names_share_a_log(store: StateStore) -> None:
    """However tenant and request id are cut."""
    names = ["", "a", "b", "ab", "a:b", ":", "{a}", "a}", "a\x00", "\x00", "a" * 300, "é", "e\u0301", "%61"]
    keys = [LogKey(tenant, request_id) for tenant in names for request_id in names]
    for key in keys:
        await store.requests.open(key, "g", f"{key}".encode())
    for key in keys:
        assert await store.requests.take_over(key, "g") == LoggedRequest(f"{key}".encode(), [], False)


async def test_empty_data_ends_a_log_and_adds_nothing(store: StateStore) -> None:
    await store.requests.open(KEY, "gateway 1", b"opening")
    await store.requests.append([entry(b"data"), entry(b"")])
    assert await store.requests.take_over(KEY, "gateway 1") == LoggedRequest(b"opening", [b"data"], False)
    await store.requests.append([entry(b"", last=True)])
    assert await store.requests.take_over(KEY, "gateway 1") == LoggedRequest(b"opening", [b"data"], True)


async def test_a_log_that_would_get_too_large_is_dropped_whole(
    store: StateStore, caplog: pytest.LogCaptureFixture
) -> None:
    await store.requests.open(KEY, "gateway 1", b"x" * LIMITS.max_opening_bytes)
    await store.requests.append([entry(b"x" * LIMITS.max_bytes)])
    assert not caplog.records
    assert await store.requests.append([entry(b"x")]) == set()
    assert "too long for the token log" in caplog.text
    assert await store.requests.take_over(KEY, "g") is None

    await store.requests.open(KEY, "gateway 1", b"short")
    await store.requests.append([entry(b"x")] * LIMITS.max_entries)
    await store.requests.append([entry(b"x"), entry(b"y")])
    assert await store.requests.take_over(KEY, "g") is None

    await store.requests.open(KEY, "gateway 1", b"short")
    await store.requests.open(KEY, "gateway 1", b"x" * (LIMITS.max_opening_bytes + 1))
    assert "can't be resumed" in caplog.text
    assert await store.requests.take_over(KEY, "g") is None, "neither the one too large nor an older one"


async def test_logs_expire_so_long_after_the_last_write(redis_server: RedisServer) -> None:
    store = open_store(redis_server.url, token_log=TokenLogLimits(seconds=0.2))
    await store.start()
    kept = open_store(redis_server.url, token_log=TokenLogLimits(seconds=60))
    await kept.start()
    await store.requests.open(KEY, "gateway 1", b"goes")
    await store.requests.open(LogKey("acme", "2"), "gateway 1", b"stays")
    await kept.requests.append([entry(b"", key=LogKey("acme", "2"))])
    await eventually(lambda: len(redis_server.client.keys("*:log")) == 1, "the end of a log")
    assert await store.requests.take_over(KEY, "g") is None
    assert await kept.requests.take_over(LogKey("acme", "2"), "g") is not None
    await store.close()
    await kept.close()


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_embedded_logs_expire_so_long_after_the_last_write() -> None:
    clock = Clock()
    log = EmbeddedStore(TokenLogLimits(seconds=10), clock).requests
    other = LogKey("acme", "request 2")
    for key in (KEY, other):
        await log.open(key, "gateway 1", b"opening")
    clock.now += 9
    await log.append([entry(b"")])
    clock.now += 9
    assert await log.take_over(other, "g") is None
    assert await log.take_over(KEY, "gateway 1") is not None, "which is a write"
    clock.now += 9
    await log.append([entry(b"x")])
    clock.now += 10
    assert await log.take_over(KEY, "g") is None


@pytest.mark.parametrize("bound", ["requests", "bytes"])
async def test_embedded_logs_are_bounded(bound: str) -> None:
    """Those written to longest ago make room."""
    limits = TokenLogLimits(max_requests=3) if bound == "requests" else TokenLogLimits(max_total_bytes=300)
    log = EmbeddedStore(limits).requests
    keys = [LogKey("acme", str(number)) for number in range(4)]
    for key in keys[:3]:
        await log.open(key, "gateway 1", b"x" * 90)
    await log.append([entry(b"y", key=keys[0])])
    await log.open(keys[3], "gateway 1", b"x" * 90)
    kept = [key for key in keys if await log.take_over(key, "g")]
    assert kept == [keys[0], keys[2], keys[3]]


@pytest.mark.parametrize("seed", [random.randrange(2**32)])
async def test_gateways_that_take_over_from_one_another_leave_no_gap(open_view: OpenStore, seed: int) -> None:
    """Each goes on from where the log it took over ends, as a gateway does that resumes a request."""
    chance = random.Random(seed)
    total = LIMITS.max_entries
    await (await open_view()).requests.open(KEY, "nobody", b"opening")

    async def gateway(owner: str) -> None:
        log = (await open_view()).requests
        while True:
            await asyncio.sleep(chance.random() * 0.01)
            logged = await log.take_over(KEY, owner)
            assert logged is not None
            number = len(logged.entries)
            while number < total:
                if await log.append([entry(b"%d" % number, owner)]):
                    break  # another gateway has it now
                number += 1
                await asyncio.sleep(chance.random() * 0.002)
            else:
                return

    await asyncio.gather(*(gateway(f"gateway {number}") for number in range(4)))
    logged = await (await open_view()).requests.take_over(KEY, "reader")
    assert logged is not None
    assert logged.entries == [b"%d" % number for number in range(total)], f"seed {seed}"


@pytest.mark.parametrize("seed", [random.randrange(2**32)])
async def test_both_forms_do_the_same(redis_server: RedisServer, open_redis: OpenStore, seed: int) -> None:
    chance = random.Random(seed)
    embedded, redis = (await open_redis("embedded")).requests, (await open_redis(redis_server.url)).requests
    keys, owners = [LogKey(tenant, "1") for tenant in "abc"], ["g1", "g2"]
    for step in range(150):
        key, owner = chance.choice(keys), chance.choice(owners)
        match chance.choice(["open", "append", "append", "take_over"]):
            case "open":
                for log in (embedded, redis):
                    await log.open(key, owner, b"%d" % step)
            case "append":
                entries = [
                    LogEntry(
                        chance.choice(keys),
                        owner,
                        b"x" * chance.randrange(200),
                        not chance.randrange(9),
                    )
                    for _ in range(chance.randrange(4))
                ]
                assert await redis.append(entries) == await embedded.append(entries), f"seed {seed}, step {step}"
            case _:
                took = await redis.take_over(key, owner)
                assert took == await embedded.take_over(key, owner), f"seed {seed}, step {step}"
