"""`octavo tenant`, as a person or a script uses it."""

from __future__ import annotations

import asyncio
import json
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.scope import Identity, ScopeLevel
from gateway.tenants import Directory, Tenant
from services.cli.app import run
from services.state.tenants import Usage, UsageBatch
from services.state.tenants_file import TenantsFile, UsageFile
from tests.ports import free_port

KEY = r"octavo_[0-9a-f]{16}_[A-Za-z0-9_-]{43}"

Octavo = Callable[..., str]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tenants.json"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OCTAVO_STATE", "OCTAVO_GATEWAY_STATE", "OCTAVO_TENANTS_FILE", "OCTAVO_GATEWAY_TENANTS_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def octavo(path: Path, capsys: pytest.CaptureFixture[str]) -> Octavo:
    """Runs `octavo tenant` on the file and gives what it printed; with `fails`, its one line of complaint."""

    def call(*arguments: str, fails: int = 0) -> str:
        capsys.readouterr()
        exit_code = run(["tenant", *arguments, "--tenants-file", str(path)])
        out, err = capsys.readouterr()
        assert exit_code == fails, err
        if not fails:
            return out.strip()
        (line,) = err.splitlines()
        assert out == ""
        return line

    return call


def directory(path: Path) -> Directory:
    return Directory(asyncio.run(TenantsFile(path).all()))


def test_the_key_that_is_printed_is_the_one_that_opens(octavo: Octavo, path: Path) -> None:
    key = octavo("add", "acme", "--app", "search", "--widest-scope", "app", "--namespace", "docs", "--namespace", "law")
    assert re.fullmatch(KEY, key)
    expected = Identity("acme", "search", frozenset({"docs", "law"}), ScopeLevel.APP)
    assert directory(path).authenticate(key) == expected
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert key.rpartition("_")[2] not in octavo("list") + octavo("list", "--json") + path.read_text()


def test_a_second_key_for_another_app_and_one_of_them_revoked(octavo: Octavo, path: Path) -> None:
    first = octavo("add", "acme", "--requests-per-minute", "60")
    second = json.loads(octavo("add", "acme", "--app", "chat", "--json"))
    assert (second["tenant"], second["app"], second["widest_scope"]) == ("acme", "chat", "shared")
    assert octavo("revoke", second["key_id"]) == f"revoked of tenant acme: {second['key_id']}"
    assert directory(path).authenticate(first) == Identity("acme", "default")
    assert directory(path).tenant("acme").requests_per_minute == 60
    keys = {key["app"]: key["revoked_at"] for key in json.loads(octavo("list", "--json"))[0]["keys"]}
    assert keys["default"] is None
    assert keys["chat"]
    assert "nothing left to revoke" in octavo("revoke", second["key_id"], fails=1)
    assert json.loads(octavo("revoke", "acme", "--json"))["tenant"] == "acme"
    assert "nothing left to revoke" in octavo("revoke", "acme", fails=1)


def test_limits_change_one_by_one_and_are_lifted(octavo: Octavo, path: Path) -> None:
    octavo("add", "acme", "--requests-per-minute", "60", "--max-blocks", "100", "--namespace", "docs")
    said = octavo("limit", "acme", "--tokens-per-minute", "5000", "--reserved-blocks", "10", "--weight", "2.5")
    for part in ("60 requests a minute", "5000 tokens a minute", "10 blocks reserved", "100 blocks at most"):
        assert part in said
    octavo("limit", "acme", "--requests-per-minute", "0", "--namespace", "law", "--leave-namespace", "docs")
    tenant = directory(path).tenant("acme")
    assert (tenant.requests_per_minute, tenant.tokens_per_minute, tenant.max_blocks) == (0, 5000, 100)
    assert (tenant.reserved_blocks, tenant.weight, tenant.namespaces) == (10, 2.5, frozenset({"law"}))


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["add", "a b"], 2, "'a b' is no name"),
        (["add", "acme", "--app", "a/b"], 2, "'a/b' is no name"),
        (["add", "acme", "--requests-per-minute", "-1"], 2, "requests_per_minute: must not be negative"),
        (["add", "acme", "--widest-scope", "all"], 2, "widest-scope"),
        (["add", "there", "--max-concurrent", "3"], 1, "there is a tenant 'there' already.*octavo tenant limit"),
        (["limit", "there"], 2, "say what to change"),
        (["limit", "nobody", "--weight", "2"], 1, "there is no tenant 'nobody'"),
        (["limit", "there", "--weight", "0"], 2, "weight: must be a number above 0"),
        (["limit", "there", "--max-blocks", "3", "--reserved-blocks", "4"], 2, "reserved_blocks: must be at most"),
        (["limit", "there", "--leave-namespace", "docs"], 1, "not in namespace 'docs'"),
        (["revoke", "nobody"], 1, "there is no tenant and no key 'nobody'"),
        (["usage", "nobody"], 1, "there is no tenant 'nobody'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    octavo: Octavo, path: Path, arguments: list[str], exit_code: int, message: str
) -> None:
    octavo("add", "there")
    before = path.read_bytes()
    assert re.search(message, octavo(*arguments, fails=exit_code))
    assert path.read_bytes() == before


def test_usage_by_app(octavo: Octavo, path: Path) -> None:
    octavo("add", "acme")
    assert octavo("usage", "acme") == "tenant acme has used nothing yet"
    counted = {("acme", "search"): Usage(1, 200, 30, 44, 5), ("acme", "chat"): Usage(refused=7)}
    asyncio.run(UsageFile(path, lambda: 86_400.0).add(UsageBatch("gateway", 1, counted)))
    first, head, chat, search = octavo("usage", "acme").splitlines()
    assert first == "tenant acme since 1970-01-02 00:00:00 UTC"
    assert head.split() == ["app", "requests", "prompt", "cached", "generated", "refused"]
    assert (chat.split(), search.split()) == (["chat", *"00007"], ["search", "1", "200", "30", "44", "5"])
    told: dict[str, Any] = json.loads(octavo("usage", "acme", "--json"))
    assert told["since"] == "1970-01-02T00:00:00+00:00"
    assert told["apps"]["search"]["cached_tokens"] == 30


def test_where_tenants_are_is_to_be_said_and_to_be_there(
    octavo: Octavo, path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def complaint(*arguments: str) -> str:
        assert run(["tenant", "list", *arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        (line,) = err.splitlines()
        return line

    assert "--state redis://HOST:PORT/0 or --tenants-file PATH" in complaint()
    assert "state: neither" in complaint("--state", "postgres://x")
    assert "can't be read or written" in complaint("--state", f"redis://127.0.0.1:{free_port()}/0")
    path.write_text("{")
    assert "tenants.json: not JSON" in complaint("--tenants-file", str(path))
    path.unlink()
    octavo("add", "acme")
    monkeypatch.setenv("OCTAVO_GATEWAY_TENANTS_FILE", str(path))
    assert run(["tenant", "list"]) == 0
    assert capsys.readouterr().out.startswith("acme: no limits\n  ")


def test_what_the_file_says_is_what_a_tenant_may_have(octavo: Octavo, path: Path) -> None:
    octavo("add", "acme", "--max-concurrent", "4")
    (tenant,) = asyncio.run(TenantsFile(path).all())
    assert tenant == Tenant("acme", tenant.keys, max_concurrent=4)
