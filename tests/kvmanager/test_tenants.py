"""Many tenants in one pool: what is reserved, limited, charged, and who gives up cached blocks first."""

from __future__ import annotations

import pytest

from kvmanager.accounts import Quota
from kvmanager.cost_model import Preemption
from kvmanager.errors import InvalidRequest
from kvmanager.events import EventKind
from kvmanager.request import RequestState
from kvmanager.spec import BeamParams, Scope
from kvmanager.views import tenant_views
from tests.kvmanager.harness import Harness

ACME = Scope(b"acme", "acme", 1)
BETA = Scope(b"beta", "beta", 1)
DOCS = Scope(b"docs", "shared:docs", 0)


def tenants(num_blocks: int = 20, **quotas: Quota) -> Harness:
    return Harness(num_blocks=num_blocks, block_size=4, quotas=quotas, max_waiting_requests=1000)


def submit(h: Harness, handle: object, length: int, max_tokens: int, scope: Scope = ACME, **options: object) -> None:
    h.submit(handle, h.prompt(length), max_tokens, scope=scope, tenant=scope.owner, **options)  # type: ignore[arg-type]


def step_and_check_limits(h: Harness) -> None:
    """No step takes an owner above its limit, or the others into what is reserved for one."""
    h.step()
    for replica in h.manager.replicas.values():
        pool = replica.memory.pool
        for account in pool.accounts:
            assert not account.quota.max_blocks or account.num_charged <= account.quota.max_blocks
        assert pool.num_available >= pool.accounts.kept_for_owners({})


def run_within_limits(h: Harness) -> None:
    while not h.manager.idle:
        step_and_check_limits(h)
    h.run_and_check()


# Reserved blocks


def test_nobody_else_gets_what_is_reserved():
    h = tenants(acme=Quota(reserved_blocks=8))
    submit(h, "b1", 20, 4, BETA)
    submit(h, "b2", 20, 4, BETA)
    submit(h, "b3", 20, 4, BETA)
    h.step()
    assert h.charged("beta") == 12
    assert h.details(EventKind.WAITED, "b3") == ["blocks"]
    submit(h, "a", 28, 4)
    run_within_limits(h)
    assert h.counters.preemptions == 0


def test_an_owner_gets_what_is_reserved_at_once():
    h = tenants(acme=Quota(reserved_blocks=8))
    for index in range(2):
        submit(h, index, 20, 12, BETA)
    for _ in range(3):
        h.step()
    submit(h, "a", 28, 4)
    h.step()
    assert h.request("a").state is RequestState.RUNNING
    run_within_limits(h)
    assert "a" not in h.handles(EventKind.PREEMPTED)


def test_what_can_only_run_on_what_is_reserved_for_others_is_refused():
    h = tenants(acme=Quota(reserved_blocks=8))
    with pytest.raises(InvalidRequest, match="12 blocks"):
        submit(h, "b", 52, 4, BETA)
    submit(h, "a", 52, 4)
    submit(h, "b", 44, 4, BETA)
    run_within_limits(h)


def test_what_an_owner_uses_beyond_its_reservation_is_shared_with_others():
    h = tenants(acme=Quota(reserved_blocks=4))
    submit(h, "a", 30, 50)
    for index in range(3):
        submit(h, index, 12, 20, BETA)
    run_within_limits(h)


def test_who_is_within_its_reservation_is_not_preempted_for_others():
    h = tenants(num_blocks=16, acme=Quota(reserved_blocks=8))
    submit(h, "b1", 12, 20, BETA)
    submit(h, "b2", 4, 12, BETA)
    submit(h, "a", 12, 20)  # the latest, but no more than eight blocks
    run_within_limits(h)
    assert h.counters.preemptions > 0
    assert "a" not in h.handles(EventKind.PREEMPTED)


def test_reservations_of_several():
    h = tenants(num_blocks=24, acme=Quota(reserved_blocks=8), beta=Quota(reserved_blocks=8))
    for index in range(4):
        submit(h, ("a", index), 12, 20, ACME)
        submit(h, ("b", index), 12, 20, BETA)
        submit(h, ("c", index), 12, 20, Scope(b"gamma", "gamma", 1))
    run_within_limits(h)


# Limits


def test_a_tenant_at_its_limit_waits_while_others_do_not():
    h = tenants(beta=Quota(max_blocks=6))
    submit(h, "b1", 12, 8, BETA)
    submit(h, "b2", 12, 8, BETA)
    submit(h, "b3", 12, 8, BETA)
    submit(h, "a", 12, 8)
    step_and_check_limits(h)
    assert h.details(EventKind.WAITED, "b3") == ["tenant_limit"]
    assert h.request("a").state is RequestState.RUNNING
    run_within_limits(h)
    assert h.handles(EventKind.FINISHED).index("a") < h.handles(EventKind.FINISHED).index("b3")


def test_a_tenant_that_grows_to_its_limit_preempts_its_own():
    h = tenants(num_blocks=40, beta=Quota(max_blocks=8))
    submit(h, "a", 12, 30)
    submit(h, "b1", 8, 20, BETA)
    submit(h, "b2", 8, 20, BETA)
    submit(h, "late", 12, 30)
    run_within_limits(h)
    assert set(h.handles(EventKind.PREEMPTED)) == {"b2"}


@pytest.mark.parametrize("preemption", [Preemption.SWAP, Preemption.RECOMPUTE])
def test_others_go_ahead_of_a_swapped_out_request_whose_tenant_is_at_its_limit(preemption):
    h = Harness(40, 4, num_host_blocks=40, preemption=preemption, quotas={"beta": Quota(max_blocks=8)})
    submit(h, "b1", 8, 20, BETA)
    submit(h, "b2", 8, 20, BETA)
    while not h.details(EventKind.PREEMPTED, "b2"):
        h.step()
    submit(h, "a", 8, 2)
    run_within_limits(h)
    assert h.handles(EventKind.FINISHED)[0] == "a"


def test_what_exceeds_its_tenants_limit_for_ever_is_refused():
    h = tenants(beta=Quota(max_blocks=6))
    with pytest.raises(InvalidRequest, match="6 blocks"):
        submit(h, "b", 30, 4, BETA)
    submit(h, "b", 20, 5, BETA)
    run_within_limits(h)


def test_without_max_tokens_a_request_gets_what_its_tenant_may_have():
    h = tenants(beta=Quota(max_blocks=6))
    submit(h, "b", 12, 0, BETA)
    h.run()
    assert len(h.output["b", 0]) == 6 * 4 + 1 - 12


def test_a_tenant_may_fill_its_limit_while_others_keep_running():
    """A part of the pool is kept back from new requests; a limit is no such part."""
    h = tenants(num_blocks=200, beta=Quota(max_blocks=10))
    for index in range(4):
        submit(h, index, 8, 20)
    h.step()
    submit(h, "b", 38, 2, BETA)  # ten blocks
    for index in range(4, 12):
        for _ in range(5):
            h.step()
        submit(h, index, 8, 20)
    assert "b" in h.usage
    run_within_limits(h)


@pytest.mark.parametrize("options", [{"n": 3}, {"best_of": 3}, {"n": 2, "beam": BeamParams(3)}])
def test_groups_keep_to_their_tenants_limit(options):
    h = tenants(num_blocks=40, beta=Quota(max_blocks=14))
    for index in range(4):
        submit(h, index, 9, 7, BETA, **options)
    submit(h, "a", 9, 30)
    run_within_limits(h)


def test_the_limit_is_for_each_executor():
    h = Harness(20, 4, num_executors=2, quotas={"beta": Quota(max_blocks=6)})
    for index in range(2):
        submit(h, index, 20, 4, BETA)
    h.step()
    assert h.handles(EventKind.ADMITTED) == [0, 1]
    h.run_and_check()


# Charges


def test_a_shared_block_is_charged_once_to_its_scopes_owner():
    h = tenants(num_blocks=40)
    system = h.prompt(16)
    for tenant, scope in (("acme", ACME), ("beta", BETA)):
        h.submit(tenant, [*system, *h.prompt(6)], 8, spans=((16, DOCS), (6, scope)), tenant=tenant)
    h.step()
    assert [h.charged(owner) for owner in ("shared:docs", "acme", "beta")] == [4, 2, 2]
    h.run_and_check()
    assert [h.charged(owner) for owner in ("shared:docs", "acme", "beta")] == [0, 0, 0]
    cached = {view.owner: view.cached_blocks for view in tenant_views(h.manager)}
    assert cached["shared:docs"] == 4


def test_samples_are_charged_once_for_what_they_share():
    h = tenants(num_blocks=40)
    submit(h, "a", 10, 4, n=4)
    h.schedule()
    h.schedule()
    assert h.charged("acme") == 2 + 4
    h.run_and_check()


def test_blocks_are_charged_until_no_step_can_touch_them():
    h = tenants()
    submit(h, "a", 10, 4)
    h.schedule()
    h.schedule()
    h.abort("a")
    assert h.charged("acme") == 3
    h.finish_steps()
    assert h.charged("acme") == 0


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_what_comes_back_from_the_host_tier_is_charged_as_before(prefix_caching):
    h = Harness(
        num_blocks=13, block_size=4, num_host_blocks=40, preemption=Preemption.SWAP, prefix_caching=prefix_caching
    )
    h.submit("x", h.prompt(12), 40, scope=BETA, tenant="beta")
    h.submit("a", h.prompt(20), 10, spans=((12, DOCS), (8, ACME)), tenant="acme")
    while h.request("a").state is not RequestState.SWAPPED:
        h.step()
    h.abort("x")
    while h.request("a").state is RequestState.SWAPPED:
        h.step()
    assert h.charged("shared:docs") == 3
    assert h.charged("acme") >= 3
    h.run()
    assert h.output["a", 0] == h.expected("a")


# Eviction


def test_a_tenant_that_caches_much_does_not_push_out_one_that_caches_little():
    h = tenants(num_blocks=30)
    little = h.prompt(16)
    h.submit("little", little, 1, scope=BETA, tenant="beta")
    h.run()
    for index in range(10):
        submit(h, index, 40, 1)
        h.run()
    assert h.replica.memory.device.cache.num_evicted > 40
    h.submit("again", [*little, 1], 1, scope=BETA, tenant="beta")
    h.run_and_check()
    assert h.usage["again"].cached_tokens == 16


def test_every_owner_with_a_quota_is_listed():
    h = tenants(acme=Quota(reserved_blocks=2, max_blocks=9, weight=3.0))
    (view,) = tenant_views(h.manager)
    assert (view.owner, view.charged_blocks, view.cached_blocks, view.pinned_blocks) == ("acme", 0, 0, 0)
    assert view.quota == Quota(2, 9, 3.0)
