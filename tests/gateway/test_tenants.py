"""Who a key belongs to, and what nobody learns about it."""

from __future__ import annotations

import secrets
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api_keys import ApiKey, new_key, parse_key
from gateway.errors import Unauthenticated
from gateway.scope import Identity, ScopeLevel
from gateway.tenants import Directory, Tenant


def key_of(app: str = "default", **about: object) -> tuple[str, ApiKey]:
    text, key_id, secret_hash = new_key(secrets.randbits)
    return text, replace(ApiKey(key_id, secret_hash, app), **about)  # type: ignore[arg-type]


def test_a_key_says_tenant_app_namespaces_and_the_widest_scope() -> None:
    search, search_key = key_of("search")
    chat, chat_key = key_of("chat", widest_scope=ScopeLevel.APP)
    other, other_key = key_of("search")
    acme = Tenant("acme", (search_key, chat_key), namespaces=frozenset({"docs"}))
    directory = Directory([acme, Tenant("beta", (other_key,))], {"law": ["beta", "acme"], "music": ["beta"]})
    assert directory.authenticate(search) == Identity("acme", "search", frozenset({"docs", "law"}))
    assert directory.authenticate(chat) == Identity("acme", "chat", frozenset({"docs", "law"}), ScopeLevel.APP)
    assert directory.authenticate(other) == Identity("beta", "search", frozenset({"law", "music"}))


def test_what_is_wrong_with_a_key_is_not_told() -> None:
    text, key = key_of()
    revoked, revoked_key = key_of(revoked_at=1)
    stranger, _ = key_of()
    key_id, secret = parse_key(text) or ("", "")
    directory = Directory([Tenant("acme", (key, revoked_key))])
    another_secret = (parse_key(stranger) or ("", ""))[1]
    wrong = [
        "",
        "octavo",
        revoked,
        stranger,
        f"octavo_{key_id}_{another_secret}",
        f"octavo_{key_id}_{secret[:-1]}",
        f"octavo_{key_id}_",
        f" {text}",
        f"{text}\n",
        text.upper(),
        f"octavo_{key_id}_{key.secret_hash.hex()[:43]}",
        "ä" * 64,
        "\ud800",
    ]
    errors = set()
    for each in wrong:
        with pytest.raises(Unauthenticated) as refused:
            directory.authenticate(each)
        errors.add((str(refused.value), repr(refused.value)))
    assert len(errors) == 1
    assert directory.authenticate(text).tenant == "acme"


@given(st.text())
def test_whatever_is_sent_is_refused_in_the_same_way(text: str) -> None:
    with pytest.raises(Unauthenticated):
        Directory([Tenant("acme", (key_of()[1],))]).authenticate(text)


def test_a_tenant_that_nobody_knows_has_no_limits() -> None:
    assert Directory([]).empty
    assert Directory([]).tenant("acme") == Tenant("acme")
    assert not Directory([Tenant("acme")]).empty, "a tenant whose keys are all gone does not open the door to all"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "a b"}, "'a b' is no name"),
        ({"namespaces": frozenset({"a:b"})}, "'a:b' is no name"),
        ({"requests_per_minute": -1}, "requests_per_minute: must not be negative"),
        ({"max_blocks": 3, "reserved_blocks": 4}, "reserved_blocks: must be at most max_blocks, 3"),
        ({"weight": 0.0}, "weight: must be a number above 0"),
        ({"weight": float("inf")}, "weight: must be a number above 0"),
        ({"weight": float("nan")}, "weight: must be a number above 0"),
    ],
)
def test_what_no_tenant_can_have(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(Tenant("acme"), **wrong)  # type: ignore[arg-type]
