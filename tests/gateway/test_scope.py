"""Who can reach whose cached keys and values: salts that differ wherever callers must not share."""

import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidArgument, PermissionDenied, ScopeTooWide
from gateway.scope import CacheScope, Identity, RequestScopes, Scope, ScopeLevel, is_name

REQUEST, APP, TENANT = (CacheScope(level) for level in (ScopeLevel.REQUEST, ScopeLevel.APP, ScopeLevel.TENANT))
DOCS = CacheScope(ScopeLevel.SHARED, "docs")

names = st.text(alphabet="abAB01_.-", min_size=1, max_size=6)
identities = st.builds(Identity, names, names, st.just(frozenset({"docs"})))


def resolve(scope: CacheScope, identity: Identity) -> Scope:
    return RequestScopes(identity, secrets.randbits).resolve(scope, "cache_scope")


@pytest.mark.parametrize(
    ("scope", "narrowness", "owner"),
    [(DOCS, 0, "shared:docs"), (TENANT, 1, "acme"), (APP, 2, "acme"), (REQUEST, 3, "acme")],
)
def test_narrowness_and_owner(scope: CacheScope, narrowness: int, owner: str) -> None:
    resolved = resolve(scope, Identity("acme", "search", frozenset({"docs"})))
    assert (resolved.narrowness, resolved.owner) == (narrowness, owner)


@given(first=identities, second=identities)
def test_who_shares_with_whom(first: Identity, second: Identity) -> None:
    assert resolve(DOCS, first) == resolve(DOCS, second)
    assert (resolve(TENANT, first) == resolve(TENANT, second)) == (first.tenant == second.tenant)
    same_app = (first.tenant, first.app) == (second.tenant, second.app)
    assert (resolve(APP, first) == resolve(APP, second)) == same_app
    assert resolve(REQUEST, first) != resolve(REQUEST, second)


@given(identity=identities)
def test_levels_never_meet(identity: Identity) -> None:
    salts = {resolve(scope, identity).salt for scope in (DOCS, TENANT, APP, REQUEST)}
    assert len(salts) == 4


def test_parts_do_not_run_into_one_another() -> None:
    everybody = [Identity("a", "bc"), Identity("ab", "c"), Identity("abc", "app"), Identity("app", "abc")]
    assert len({resolve(APP, identity).salt for identity in everybody}) == len(everybody)


def test_a_request_has_one_scope_of_its_own_with_128_random_bits() -> None:
    scopes = RequestScopes(Identity(), lambda bits: 2**bits - 1)
    first, second = scopes.resolve(REQUEST, ""), scopes.resolve(REQUEST, "")
    assert first == second
    assert b"\xff" * 16 in first.salt


def test_the_narrower_of_two() -> None:
    scopes = RequestScopes(Identity("acme", "search", frozenset({"docs", "code"})), secrets.randbits)
    code, docs, tenant, app, request = (
        scopes.resolve(scope, "") for scope in (CacheScope(ScopeLevel.SHARED, "code"), DOCS, TENANT, APP, REQUEST)
    )
    for wider, narrower in ((docs, tenant), (tenant, app), (app, request), (docs, request), (docs, docs)):
        assert scopes.narrower(wider, narrower) == narrower
        assert scopes.narrower(narrower, wider) == narrower
    # Neither namespace's members may see what depends on the other's content.
    assert scopes.narrower(docs, code) == scopes.narrower(code, docs) == tenant


@pytest.mark.parametrize(
    ("scope", "error", "field", "message"),
    [
        (CacheScope(None), InvalidArgument, "cache_scope", "must be one of request, app, tenant and shared"),
        (CacheScope(ScopeLevel.SHARED, ""), InvalidArgument, "cache_scope.shared", "1 to 64 letters"),
        (CacheScope(ScopeLevel.SHARED, "a b"), InvalidArgument, "cache_scope.shared", "1 to 64 letters"),
        (CacheScope(ScopeLevel.SHARED, "code"), PermissionDenied, "cache_scope.shared", "has not joined .*'code'"),
    ],
)
def test_refusals(scope: CacheScope, error: type[InvalidArgument], field: str, message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        resolve(scope, Identity("acme", "search", frozenset({"docs"})))
    assert caught.value.field == field


def test_names() -> None:
    assert all(is_name(name) for name in ("a", "A-b_c.9", "x" * 64))
    assert not any(is_name(name) for name in ("", "x" * 65, "a b", "ä", "a/b", "shared:docs", "a\n"))


@pytest.mark.parametrize("widest", ScopeLevel)
def test_a_caller_can_only_narrow(widest: ScopeLevel) -> None:
    caller = Identity("acme", "search", frozenset({"docs"}), widest)
    whole = Identity("acme", "search", frozenset({"docs"}))
    for scope in (DOCS, TENANT, APP):
        assert scope.level is not None
        if scope.level >= widest:
            assert resolve(scope, caller) == resolve(scope, whole)
        else:
            with pytest.raises(ScopeTooWide, match=f"{widest.name.lower()} is the widest") as refused:
                resolve(scope, caller)
            assert refused.value.field == "cache_scope"
    assert caller.default_scope == CacheScope(max(widest, ScopeLevel.TENANT))


def test_of_namespaces_that_are_too_wide_not_even_their_names_are_looked_at() -> None:
    caller = Identity("acme", "search", frozenset({"docs"}), ScopeLevel.TENANT)
    for namespace in ("docs", "unknown", "no name"):
        with pytest.raises(ScopeTooWide):
            resolve(CacheScope(ScopeLevel.SHARED, namespace), caller)
