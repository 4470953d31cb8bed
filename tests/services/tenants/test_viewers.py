"""Who may look: the operator with its key, tenants with theirs, everybody where nobody is kept out."""

from __future__ import annotations

import secrets
from pathlib import Path

import grpc
import pytest

from gateway.api_keys import new_key
from services.config import ConfigError, GatewayConfig
from services.gateway.viewers import OPERATOR, Viewer
from services.rpc.status import RpcError
from services.state.tenants import EmbeddedTenants
from tests.services.tenants.test_door import ACME, KEY, PROXY, Metadata, Store, bearer, opened

OPERATOR_KEY = secrets.token_hex(16)


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "operator.key"
    path.write_text(f"{OPERATOR_KEY}\n")
    return str(path)


async def test_the_operator_s_key_shows_all_and_a_tenant_s_its_own(key_file: str) -> None:
    door = await opened(EmbeddedTenants([ACME]), operator_key_file=key_file)
    assert door.viewers.identify(bearer(OPERATOR_KEY)) == OPERATOR
    assert door.viewers.identify(bearer(KEY)) == Viewer("acme")
    strange: list[Metadata] = [
        [],
        PROXY,
        bearer(OPERATOR_KEY[:-1]),
        bearer(OPERATOR_KEY + "0"),
        bearer("\ud800"),
        bearer(new_key(secrets.randbits)[0]),
        [*bearer(OPERATOR_KEY), *bearer(OPERATOR_KEY)],
    ]
    for metadata in strange:
        with pytest.raises(RpcError) as refused:
            door.viewers.identify(metadata)
        assert refused.value.code is grpc.StatusCode.UNAUTHENTICATED


async def test_the_operator_is_no_tenant(key_file: str) -> None:
    door = await opened(EmbeddedTenants([ACME]), operator_key_file=key_file)
    with pytest.raises(RpcError) as refused:
        door.callers.identify(bearer(OPERATOR_KEY))
    assert refused.value.code is grpc.StatusCode.UNAUTHENTICATED


async def test_without_the_key_nobody_is_the_operator_where_there_are_tenants() -> None:
    door = await opened(EmbeddedTenants([ACME]))
    for metadata in ([], bearer(""), bearer("None")):
        with pytest.raises(RpcError):
            door.viewers.identify(metadata)


async def test_an_open_gateway_shows_all_to_everybody_until_there_is_a_tenant(key_file: str) -> None:
    tenants = EmbeddedTenants()
    door = await opened(tenants, operator_key_file=key_file)
    assert door.viewers.identify([]) == OPERATOR
    await tenants.change("acme", lambda _: ACME)
    await door.feed.refresh()
    with pytest.raises(RpcError):
        door.viewers.identify([])


async def test_behind_a_proxy_its_word_counts_but_for_the_operator(key_file: str) -> None:
    door = await opened(EmbeddedTenants(), trusted_identity=True, operator_key_file=key_file)
    assert door.viewers.identify(PROXY) == Viewer("beta")
    assert door.viewers.identify([*PROXY, *bearer(OPERATOR_KEY)]) == OPERATOR
    with pytest.raises(RpcError):
        door.viewers.identify([])


async def test_the_operator_looks_also_while_tenants_are_not_known(key_file: str) -> None:
    store = Store([ACME])
    store.away = True
    door = await opened(store, operator_key_file=key_file)
    assert door.viewers.identify(bearer(OPERATOR_KEY)) == OPERATOR
    with pytest.raises(RpcError) as refused:
        door.viewers.identify(bearer(KEY))
    assert refused.value.code is grpc.StatusCode.UNAVAILABLE


def test_the_key_comes_from_a_file_or_the_environment(key_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = secrets.token_hex(16)
    monkeypatch.setenv("OCTAVO_OPERATOR_KEY", other)
    assert GatewayConfig(model="m").operator_key() == other
    config = GatewayConfig(model="m", operator_key_file=key_file)
    assert config.operator_key() == OPERATOR_KEY
    assert OPERATOR_KEY not in repr(config)
    monkeypatch.delenv("OCTAVO_OPERATOR_KEY")
    assert GatewayConfig(model="m").operator_key() is None


@pytest.mark.parametrize("key", ["", "short", "with a space in its middle", "nøt-ascii-but-long-enough", "\x00" * 20])
def test_what_is_no_key_is_refused_without_being_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    path = tmp_path / "operator.key"
    path.write_text(key)
    with pytest.raises(ConfigError, match=r"operator_key_file: .*operator\.key: the key must be 16 or more") as refused:
        GatewayConfig(model="m", operator_key_file=str(path))
    assert not key or key not in str(refused.value)
    with pytest.raises(ConfigError, match=r"operator_key_file: .*No such file"):
        GatewayConfig(model="m", operator_key_file=str(tmp_path / "none"))
    if key.strip("\x00"):
        monkeypatch.setenv("OCTAVO_OPERATOR_KEY", key)
        with pytest.raises(ConfigError, match="OCTAVO_OPERATOR_KEY: the key must be"):
            GatewayConfig(model="m")
