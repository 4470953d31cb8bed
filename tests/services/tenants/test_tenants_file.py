"""The tenants file: what is in it, who may read it, and what several writers make of it."""

from __future__ import annotations

import asyncio
import json
import secrets
import stat
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api_keys import ApiKey, new_key, parse_key
from gateway.scope import ScopeLevel
from gateway.tenants import Tenant
from services.state.store import StateUnavailable
from services.state.tenant_records import dump_tenant, load_tenant
from services.state.tenants import Usage, UsageBatch
from services.state.tenants_file import TenantsFile, UsageFile

names = st.from_regex(r"[A-Za-z0-9_.-]{1,8}", fullmatch=True)
numbers = st.integers(0, 10**9)
keys = st.builds(
    ApiKey,
    key_id=st.from_regex("[0-9a-f]{16}", fullmatch=True),
    secret_hash=st.binary(min_size=32, max_size=32),
    app=names,
    widest_scope=st.sampled_from(ScopeLevel),
    created_at=numbers,
    revoked_at=st.none() | numbers,
)
tenants = st.builds(
    Tenant,
    names,
    keys=st.lists(keys, max_size=3).map(tuple),
    requests_per_minute=numbers,
    tokens_per_minute=numbers,
    max_concurrent=numbers,
    reserved_blocks=numbers,
    weight=st.floats(1e-3, 1e3),
    namespaces=st.frozensets(names, max_size=3),
)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "tenants.json"
    assert {each.name for each in tmp_path.iterdir()} <= {
        f"tenants.json{ending}" for ending in ("", ".lock", ".usage", ".usage.lock")
    }, "something was left behind"


R = TypeVar("R")


def run(coroutine: Coroutine[Any, Any, R]) -> R:
    return asyncio.run(coroutine)


@given(tenants)
def test_a_record_says_all(tenant: Tenant) -> None:
    assert load_tenant(tenant.name, dump_tenant(tenant)) == tenant


def test_a_key_is_there_as_a_hash_only_and_for_its_owner_alone(path: Path) -> None:
    text, key_id, secret_hash = new_key(secrets.randbits)
    file = TenantsFile(path)
    assert run(file.all()) == []
    before = run(file.version())
    acme = run(file.change("acme", lambda _: Tenant("acme", (ApiKey(key_id, secret_hash),))))
    assert run(file.all()) == [acme]
    assert run(file.version()) != before
    assert (parse_key(text) or ("", ""))[1] not in path.read_text()
    for each in (path, path.with_name("tenants.json.lock")):
        assert stat.S_IMODE(each.stat().st_mode) == 0o600


def test_what_is_written_by_hand_needs_no_more_than_it_says(path: Path) -> None:
    path.write_text(json.dumps({"tenants": {"acme": {"requests_per_minute": 5}, "beta": {}}}))
    assert run(TenantsFile(path).all()) == [Tenant("acme", requests_per_minute=5), Tenant("beta")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"schema": 2}', "not a tenants file of schema 1"),
        ('{"tenants": []}', "not a tenants file of schema 1"),
        ('{"tenants": {"a b": {}}}', "'a b' is no name"),
        ('{"tenants": {"acme": 3}}', "tenant 'acme'"),
        ('{"tenants": {"acme": {"weight": "2"}}}', "tenant 'acme': weight is no float"),
        ('{"tenants": {"acme": {"max_concurrent": true}}}', "tenant 'acme': max_concurrent is no int"),
        ('{"tenants": {"acme": {"requests": 2}}}', "tenant 'acme': .*requests"),
        ('{"tenants": {"acme": {"keys": [{}]}}}', "tenant 'acme'"),
    ],
)
def test_what_is_no_tenants_file_is_neither_read_nor_overwritten(path: Path, content: str, message: str) -> None:
    path.write_text(content)
    with pytest.raises(StateUnavailable, match=message):
        run(TenantsFile(path).all())
    with pytest.raises(StateUnavailable, match=message):
        run(TenantsFile(path).change("acme", lambda _: Tenant("acme")))
    assert path.read_text() == content


async def test_writers_at_the_same_time_lose_nothing(path: Path) -> None:
    """Each opens the file by itself, as processes do."""
    file, usage = TenantsFile(path), UsageFile(path, lambda: 5.0)

    async def write(number: int) -> None:
        def one_more(tenant: Tenant | None) -> Tenant:
            known = tenant or Tenant("acme")
            return replace(known, requests_per_minute=known.requests_per_minute + 1)

        await file.change("acme", one_more)
        await file.change(f"tenant-{number}", lambda _: Tenant(f"tenant-{number}"))
        await usage.add(UsageBatch(f"writer-{number}", 1, {("acme", "search"): Usage(1, 2, 3, 4, 5)}))

    await asyncio.gather(*(write(number) for number in range(8)))
    assert {tenant.name: tenant.requests_per_minute for tenant in await file.all()} == {
        "acme": 8,
        **{f"tenant-{number}": 0 for number in range(8)},
    }
    assert (await usage.of("acme")).by_app == {"search": Usage(8, 16, 24, 32, 40)}
    assert (await usage.of("acme")).since == 5.0
    assert (await usage.of("beta")).by_app == {}


async def test_a_batch_that_comes_again_counts_once(path: Path) -> None:
    usage = UsageFile(path, lambda: 5.0)
    for number in (1, 1, 2, 2, 1):
        await usage.add(
            UsageBatch("gateway", number, {("acme", "a"): Usage(requests=1), ("beta", "b"): Usage(refused=1)})
        )
    assert (await usage.of("acme")).by_app == {"a": Usage(requests=2)}
    assert (await usage.of("beta")).by_app == {"b": Usage(refused=2)}


def test_a_change_that_is_refused_changes_nothing(path: Path) -> None:
    file = TenantsFile(path)
    run(file.change("acme", lambda _: Tenant("acme")))
    before = path.read_bytes()

    def refuse(_: Tenant | None) -> Tenant:
        raise KeyError("no")

    with pytest.raises(KeyError):
        run(file.change("acme", refuse))
    assert path.read_bytes() == before
