"""Tenants, usage and limits, as all who share a store see them."""

from __future__ import annotations

import asyncio
import random
import secrets
from dataclasses import replace

import pytest

from gateway.api_keys import ApiKey, new_key, parse_key
from gateway.rate_limits import LimitExceeded, TenantRates
from gateway.tenants import Tenant
from services.state.limits import SharedLimits, TenantNews
from services.state.redis import limits as redis_limits
from services.state.store import StateStore, StateUnavailable
from services.state.tenants import Usage, UsageBatch
from tests.services.e2e.redis_server import RedisServer
from tests.services.state.conftest import OpenStore
from tests.services.state.waiting import eventually

KEY, KEY_ID, SECRET_HASH = new_key(secrets.randbits)


def one_more(tenant: Tenant | None) -> Tenant:
    known = tenant or Tenant("acme")
    return replace(known, requests_per_minute=known.requests_per_minute + 1)


async def test_what_one_writes_others_read(open_view: OpenStore) -> None:
    writer, reader = await open_view(), await open_view()
    before = await reader.tenants.version()
    assert await reader.tenants.all() == []
    acme = Tenant("acme", (ApiKey(KEY_ID, SECRET_HASH, "search"),), 7, 8, 9, 1, 2, 0.5, frozenset({"docs", "law"}))
    assert await writer.tenants.change("acme", lambda _: acme) == acme
    assert await reader.tenants.all() == [acme]
    assert await reader.tenants.version() != before


async def test_changes_at_the_same_time_are_all_there(open_view: OpenStore) -> None:
    views = [await open_view() for _ in range(3)]
    await asyncio.gather(*(view.tenants.change("acme", one_more) for view in views for _ in range(5)))
    (tenant,) = await views[0].tenants.all()
    assert tenant.requests_per_minute == 15


async def test_usage_adds_up_and_no_batch_counts_twice(open_view: OpenStore) -> None:
    first, second = await open_view(), await open_view()
    for store, writer, numbers in ((first, "one", (1, 1, 2, 1)), (second, "two", (1, 2, 2))):
        for number in numbers:
            counted = {("acme", "search"): Usage(1, 20, 3, 40, 5), ("acme", "chat"): Usage(2), ("beta", "x"): Usage(9)}
            await store.usage.add(UsageBatch(writer, number, counted))
    acme = await first.usage.of("acme")
    assert acme.by_app == {"search": Usage(4, 80, 12, 160, 20), "chat": Usage(8)}
    assert acme.since
    assert acme.since > 1e9
    assert (await second.usage.of("beta")).by_app == {"x": Usage(36)}
    assert (await second.usage.of("gamma")).since is None


async def test_a_store_keeps_no_secret(open_redis: OpenStore, redis_server: RedisServer) -> None:
    store = await open_redis(redis_server.url)
    await store.tenants.change("acme", lambda _: Tenant("acme", (ApiKey(KEY_ID, SECRET_HASH),)))
    (_, secret) = parse_key(KEY) or ("", "")
    stored = redis_server.client.hgetall("octavo:1:{tenants}:directory")
    assert stored
    assert secret not in str(stored)


async def test_a_record_that_makes_no_sense_is_as_if_the_store_were_away(
    open_redis: OpenStore, redis_server: RedisServer
) -> None:
    store = await open_redis(redis_server.url)
    redis_server.client.hset("octavo:1:{tenants}:directory", "acme", "{")
    with pytest.raises(StateUnavailable, match="directory: tenant 'acme'"):
        await store.tenants.all()
    with pytest.raises(StateUnavailable, match="directory: tenant 'acme'"):
        await store.tenants.change("acme", one_more)


# --- Limits: in Redis, over all gateways ----------------------------------------------------------------------------


@pytest.fixture
async def gateways(open_redis: OpenStore, redis_server: RedisServer) -> list[SharedLimits]:
    """What two gateways see."""
    stores: list[StateStore] = [await open_redis(redis_server.url) for _ in range(2)]
    return [store.limits for store in stores if store.limits is not None]


async def refusal(limits: SharedLimits, tenant: Tenant, prompt_tokens: int = 1, lease: str = "x") -> LimitExceeded:
    with pytest.raises(LimitExceeded) as refused:
        await limits.begin(tenant, prompt_tokens, lease)
    return refused.value


async def test_rates_are_those_of_all_gateways(gateways: list[SharedLimits]) -> None:
    acme, beta = Tenant("acme", requests_per_minute=3), Tenant("beta", requests_per_minute=1)
    for number in range(3):
        await gateways[number % 2].begin(acme, 1, f"lease-{number}")
    for limits in gateways:
        refused = await refusal(limits, acme)
        assert (refused.limit, refused.value) == ("requests_per_minute", 3)
        assert refused.retry_after is not None
        assert 10 < refused.retry_after <= 20
    await gateways[0].begin(beta, 1, "lease")


async def test_tokens_are_taken_at_the_door_and_as_they_are_told_of(gateways: list[SharedLimits]) -> None:
    acme = Tenant("acme", tokens_per_minute=600)
    here, there = gateways
    await here.begin(acme, 300, "one")
    await there.tell([TenantNews(acme, tokens=900), TenantNews(Tenant("beta", tokens_per_minute=5), tokens=500)])
    refused = await refusal(here, acme)
    assert refused.limit == "tokens_per_minute"
    assert refused.retry_after is not None
    assert 50 < refused.retry_after <= 61
    assert (await refusal(here, acme, 601)).retry_after is None


async def test_what_is_refused_for_one_limit_takes_nothing_of_another(gateways: list[SharedLimits]) -> None:
    acme = Tenant("acme", requests_per_minute=1, tokens_per_minute=100)
    await gateways[0].begin(replace(acme, requests_per_minute=0), 60, "one")
    for _ in range(3):
        assert (await refusal(gateways[1], acme, 60)).limit == "tokens_per_minute"
    await gateways[1].begin(acme, 40, "two")


async def test_requests_at_the_same_time_over_all_gateways(gateways: list[SharedLimits]) -> None:
    acme = Tenant("acme", max_concurrent=2)
    here, there = gateways
    await here.begin(acme, 1, "one")
    await there.begin(acme, 1, "two")
    assert (await refusal(here, acme)).limit == "max_concurrent"
    await there.tell([TenantNews(acme, ended=["two"])])
    await here.begin(acme, 1, "three")
    await refusal(there, acme)


async def test_requests_of_a_gateway_that_was_killed_end_by_themselves(
    gateways: list[SharedLimits], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_limits, "_LEASE_MS", 1000)
    acme = Tenant("acme", max_concurrent=1)
    await gateways[0].begin(acme, 1, "one")
    await gateways[0].tell([TenantNews(acme, running=["one"])])
    await refusal(gateways[1], acme, lease="two")

    async def is_let_in() -> bool:
        try:
            await gateways[1].begin(acme, 1, "two")
        except LimitExceeded:
            return False
        return True

    await eventually(is_let_in, "room for another request")


async def test_nothing_stays_of_a_tenant_that_does_nothing(
    gateways: list[SharedLimits], redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_limits, "_LEASE_MS", 1000)
    acme = Tenant("acme", requests_per_minute=600, tokens_per_minute=60_000, max_concurrent=5)
    await gateways[0].begin(acme, 100, "one")
    assert len(redis_server.client.keys("octavo:1:{tenant/acme}:*")) == 3

    async def nothing_left() -> bool:
        return not redis_server.client.keys("octavo:1:{tenant/acme}:*")

    await eventually(nothing_left, "no key of the tenant")


async def test_redis_and_a_gateway_alone_decide_alike(gateways: list[SharedLimits]) -> None:
    """A request or a token takes 6 s and more to drain, so the time that the test takes changes no decision."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    randomness = random.Random(seed)
    for number in range(5):
        tenant = Tenant(
            f"tenant-{number}",
            requests_per_minute=randomness.choice([0, 5, 10]),
            tokens_per_minute=randomness.choice([0, 3, 10]),
            max_concurrent=randomness.choice([0, 2, 6]),
        )
        alone, leases = TenantRates(), []
        for turn in range(30):
            if leases and randomness.random() < 0.3:
                await gateways[0].tell([TenantNews(tenant, ended=[leases.pop()])])
                alone.end()
                continue
            tokens, lease = randomness.randint(1, 4), f"lease-{turn}"
            expected = None
            try:
                alone.check(tenant, tokens, 1000.0)
            except LimitExceeded as refused:
                expected = refused.limit
            try:
                await gateways[turn % 2].begin(tenant, tokens, lease)
            except LimitExceeded as refused:
                assert refused.limit == expected, (tenant, turn)  # noqa: PT017
            else:
                assert expected is None, (tenant, turn)
                alone.begin(tenant, tokens, 1000.0)
                leases.append(lease)
