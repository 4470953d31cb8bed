"""Who is let in: by key, by a proxy's word, or everybody; and where a gateway listens while that is everybody."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest

from gateway.api_keys import ApiKey, new_key
from gateway.scope import Identity, ScopeLevel
from gateway.tenants import Tenant
from services.config import ConfigError, GatewayConfig
from services.gateway.door import Door
from services.rpc.status import RpcError
from services.state.embedded.store import EmbeddedStore
from services.state.store import StateUnavailable
from services.state.tenants import EmbeddedTenants
from services.state.tenants_file import TenantsFile
from services.state.token_log import TokenLogLimits

KEY, KEY_ID, SECRET_HASH = new_key(secrets.randbits)
ACME = Tenant("acme", (ApiKey(KEY_ID, SECRET_HASH, "search", ScopeLevel.APP),), namespaces=frozenset({"docs"}))
IDENTITY = Identity("acme", "search", frozenset({"docs"}), ScopeLevel.APP)
PROXY = [("octavo-tenant", "beta"), ("octavo-app", "chat")]

Metadata = Sequence[tuple[str, str | bytes]]


class Store(EmbeddedTenants):
    """A store that may be away."""

    away = False

    async def version(self) -> str:
        if self.away:
            raise StateUnavailable("gone")
        return await super().version()


async def opened(tenants: EmbeddedTenants, **settings: object) -> Door:
    store = EmbeddedStore(TokenLogLimits())
    store.tenants = tenants
    door = Door(GatewayConfig(model="m", **settings), store)  # type: ignore[arg-type]
    await door.open()
    return door


def bearer(key: str) -> Metadata:
    return [("authorization", f"Bearer {key}")]


class Refusal(NamedTuple):
    """All that a caller learns."""

    code: grpc.StatusCode
    reason: str
    message: str
    field: str
    retry_after: float | None


def refusal(door: Door, metadata: Metadata) -> Refusal:
    with pytest.raises(RpcError) as refused:
        door.callers.identify(metadata)
    error = refused.value
    return Refusal(error.code, error.reason, error.message, error.field, error.retry_after)


async def test_a_key_says_who_calls_and_all_else_is_refused_in_one_way() -> None:
    door = await opened(EmbeddedTenants([ACME]))
    assert door.callers.identify([*PROXY, *bearer(KEY)]) == IDENTITY
    assert door.callers.identify([("authorization", f"bearer  {KEY} ")]) == IDENTITY
    stranger = new_key(secrets.randbits)[0]
    wrong: list[Metadata] = [
        [],
        PROXY,
        bearer(""),
        bearer(stranger),
        bearer(KEY[:-1]),
        [("authorization", KEY)],
        [("authorization", f"Basic {KEY}")],
        [("authorization", f"Bearer {KEY}".encode())],
        [*bearer(KEY), *bearer(KEY)],
        [*bearer(KEY), *bearer(stranger)],
        [("authorization", "Bearer \ud800")],
    ]
    refusals = {refusal(door, metadata) for metadata in wrong}
    assert len(refusals) == 1
    assert refusals.pop().code is grpc.StatusCode.UNAUTHENTICATED


async def test_without_tenants_everybody_is_let_in_until_there_is_one() -> None:
    store = EmbeddedTenants()
    door = await opened(store, shared_namespaces="docs=default")
    assert door.callers.identify(bearer("anything")) == Identity(shared_namespaces=frozenset({"docs"}))
    await store.change("acme", lambda _: ACME)
    await door.feed.refresh()
    assert refusal(door, []).code is grpc.StatusCode.UNAUTHENTICATED
    assert door.callers.identify(bearer(KEY)) == IDENTITY


async def test_a_key_that_is_revoked_opens_nothing_and_leaves_the_door_shut() -> None:
    store = EmbeddedTenants([ACME])
    door = await opened(store)
    revoked = replace(ACME, keys=(replace(ACME.keys[0], revoked_at=1),))
    await store.change("acme", lambda _: revoked)
    await door.feed.refresh()
    assert refusal(door, bearer(KEY)) == refusal(door, [])


async def test_the_store_s_absence_keeps_nobody_out_who_was_known_and_lets_nobody_in() -> None:
    store = Store([ACME])
    door = await opened(store)
    store.away = True
    with pytest.raises(StateUnavailable):
        await door.feed.refresh()
    assert door.callers.identify(bearer(KEY)) == IDENTITY
    assert refusal(door, []).code is grpc.StatusCode.UNAUTHENTICATED


async def test_a_store_that_has_lost_its_tenants_does_not_open_the_door() -> None:
    store = Store([ACME])
    door = await opened(store)
    store._tenants.clear()
    store._version = 7
    with pytest.raises(StateUnavailable, match="all tenants are gone"):
        await door.feed.refresh()
    assert door.callers.identify(bearer(KEY)) == IDENTITY
    assert refusal(door, []).code is grpc.StatusCode.UNAUTHENTICATED


async def test_a_gateway_that_never_saw_its_tenants_asks_for_patience() -> None:
    store = Store([ACME])
    store.away = True
    door = await opened(store)
    refused = refusal(door, bearer(KEY))
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "TENANTS_UNKNOWN")
    assert refused.retry_after
    assert refusal(door, []) == refused
    store.away = False
    await door.feed.refresh()
    assert door.callers.identify(bearer(KEY)) == IDENTITY
    assert (await opened(store, trusted_identity=True)).callers.identify(PROXY) == Identity("beta", "chat")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
async def test_open_only_where_nobody_else_comes(host: str) -> None:
    with pytest.raises(
        ConfigError, match=r"host: others can reach .*octavo tenant add.*--insecure.*--trusted-identity"
    ):
        await opened(EmbeddedTenants(), host=host)
    assert (await opened(EmbeddedTenants(), host=host, insecure=True)).callers.identify([]) == Identity()
    assert (await opened(EmbeddedTenants(), host=host, trusted_identity=True)).callers.identify(PROXY)
    assert (await opened(EmbeddedTenants([ACME]), host=host)).callers.identify(bearer(KEY)) == IDENTITY
    guarded = await opened(EmbeddedTenants([ACME]), host=host, insecure=True)
    assert refusal(guarded, []).code is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
async def test_loopback_is_open(host: str) -> None:
    assert (await opened(EmbeddedTenants(), host=host)).callers.identify([]) == Identity()


async def test_a_gateway_that_others_reach_and_that_knows_no_tenants_yet_serves_nobody_without_a_key() -> None:
    store = Store()
    store.away = True
    door = await opened(store, host="0.0.0.0")
    assert refusal(door, []).code is grpc.StatusCode.UNAVAILABLE
    store.away = False
    await door.feed.refresh()
    assert refusal(door, []).code is grpc.StatusCode.UNAUTHENTICATED


async def test_a_tenants_file_counts_instead_of_the_store_and_asks_for_keys_even_while_it_is_empty(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tenants.json"
    door = await opened(EmbeddedTenants([ACME]), tenants_file=str(path))
    assert refusal(door, []).code is grpc.StatusCode.UNAUTHENTICATED
    assert refusal(door, bearer(KEY)) == refusal(door, [])
    await TenantsFile(path).change("acme", lambda _: ACME)
    await door.feed.refresh()
    assert door.callers.identify(bearer(KEY)) == IDENTITY


async def test_a_tenants_file_that_is_none_is_an_error_at_the_start_and_ignored_later(tmp_path: Path) -> None:
    path = tmp_path / "tenants.json"
    file = TenantsFile(path)
    await file.change("acme", lambda _: ACME)
    door = await opened(EmbeddedTenants(), tenants_file=str(path))
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"tenants_file: .*tenants\.json: not JSON"):
        await opened(EmbeddedTenants(), tenants_file=str(path))
    with pytest.raises(StateUnavailable):
        await door.feed.refresh()
    path.unlink()
    with pytest.raises(StateUnavailable):
        await door.feed.refresh()
    assert door.callers.identify(bearer(KEY)) == IDENTITY
