"""Tenants' quotas change while requests run."""

from __future__ import annotations

import pytest

from kvmanager.accounts import Quota
from kvmanager.errors import InvalidRequest
from kvmanager.events import EventKind
from kvmanager.request import RequestState
from kvmanager.spec import Scope
from tests.kvmanager.harness import Harness

ACME, BETA = Scope(b"acme", "acme", 1), Scope(b"beta", "beta", 1)


def of_acme(**options) -> dict[str, object]:
    return {"tenant": "acme", "scope": ACME, **options}


def of_beta(**options) -> dict[str, object]:
    return {"tenant": "beta", "scope": BETA, **options}


def change(h: Harness, **quotas: Quota) -> None:
    h.take(h.manager.set_quotas(quotas, h.now))
    h.manager.check_integrity()


def test_a_new_limit_holds_for_who_comes_next():
    h = Harness(num_blocks=30, block_size=4)
    change(h, acme=Quota(max_blocks=3))
    with pytest.raises(InvalidRequest, match="acme"):
        h.submit("long", h.prompt(20), **of_acme())
    for index in range(4):
        h.submit(index, h.prompt(8), max_tokens=4, **of_acme())
    most = 0
    while not h.manager.idle:
        h.step()
        most = max(most, h.charged("acme"))
    assert most == 3
    h.run_and_check()


def test_a_limit_that_is_lifted_lets_those_go_that_waited_for_it():
    h = Harness(num_blocks=30, block_size=4, quotas={"acme": Quota(max_blocks=3)})
    for index in range(4):
        h.submit(index, h.prompt(8), max_tokens=4, **of_acme())
    h.step()
    assert len(h.replica.scheduler.running) == 1
    change(h)
    h.step()
    assert len(h.replica.scheduler.running) == 4
    h.run_and_check()


def test_what_runs_goes_on_to_its_end_under_a_smaller_limit():
    h = Harness(num_blocks=30, block_size=4)
    h.submit("runs", h.prompt(20), max_tokens=20, **of_acme())
    h.submit("waits", h.prompt(20), max_tokens=20, **of_acme())
    h.replica.scheduler.limits = h.replica.scheduler.limits.__class__(64, 1, 100)
    for _ in range(3):
        h.step()
    assert h.request("waits").state is RequestState.WAITING
    change(h, acme=Quota(max_blocks=4))
    assert isinstance(h.errors["waits"], InvalidRequest)
    assert "acme" in str(h.errors["waits"])
    assert h.replica.memory.pool.accounts.changing
    h.submit("small", h.prompt(8), max_tokens=4, **of_acme())
    h.run()
    assert h.output["runs", 0] == h.expected("runs")
    assert h.output["small", 0] == h.expected("small")
    assert not h.replica.memory.pool.accounts.changing
    h.submit("next", h.prompt(8), max_tokens=4, **of_acme())
    h.run()


def test_a_limit_below_what_several_have_together_makes_some_give_way():
    h = Harness(num_blocks=30, block_size=4)
    for index in range(4):
        h.submit(index, h.prompt(8), max_tokens=12, **of_acme())
    for _ in range(3):
        h.step()
    change(h, acme=Quota(max_blocks=6))
    assert not h.replica.memory.pool.accounts.changing, "each of them fits"
    h.run_and_check()
    assert h.handles(EventKind.PREEMPTED)


def test_a_new_reservation_is_kept_free_once_others_have_given_way():
    h = Harness(num_blocks=20, block_size=4)
    for index in range(4):
        h.submit(index, h.prompt(12), max_tokens=16, **of_beta())
    for _ in range(3):
        h.step()
    change(h, acme=Quota(reserved_blocks=12))
    for _ in range(4):
        h.step()
    assert h.charged("beta") <= 8
    assert h.replica.memory.pool.num_available >= 12
    h.submit("acme", h.prompt(24), max_tokens=20, **of_acme())
    h.run_and_check()


def test_a_reservation_waits_for_a_request_that_could_not_end_with_it():
    h = Harness(num_blocks=20, block_size=4)
    h.submit("large", h.prompt(40), max_tokens=30, **of_beta())
    h.step()
    change(h, acme=Quota(reserved_blocks=12))
    with pytest.raises(InvalidRequest):
        h.submit("too large", h.prompt(40), max_tokens=30, **of_beta())
    assert h.replica.memory.pool.accounts["acme"].reserved == 0
    h.run_and_check()
    assert h.replica.memory.pool.accounts["acme"].reserved == 12


def test_a_reservation_waits_for_pins():
    h = Harness(num_blocks=10, block_size=4)
    h.pin("kept", h.prompt(28), scope=BETA, tenant="beta")
    h.run()
    change(h, acme=Quota(reserved_blocks=6))
    assert h.replica.memory.pool.accounts["acme"].reserved == 0
    assert h.manager.unpin("beta", "kept", h.now)
    assert h.replica.memory.pool.accounts["acme"].reserved == 6


def test_a_preempted_request_has_begun():
    h = Harness(num_blocks=14, block_size=2)
    h.submit("stays", h.prompt(6), max_tokens=16, **of_beta())
    h.submit("goes", h.prompt(5), max_tokens=8, n=2, **of_acme())
    while h.request("goes").state is not RequestState.PREEMPTED:
        h.step()
    change(h, acme=Quota(max_blocks=1))
    h.run_and_check()


def test_changes_while_changes_wait():
    h = Harness(num_blocks=20, block_size=4)
    h.submit("large", h.prompt(40), max_tokens=30, **of_beta())
    h.step()
    change(h, beta=Quota(max_blocks=2), acme=Quota(reserved_blocks=15))
    change(h, beta=Quota(max_blocks=5), gamma=Quota(reserved_blocks=10))
    accounts = h.replica.memory.pool.accounts
    assert (accounts["beta"].max_blocks, accounts["acme"].reserved, accounts["gamma"].reserved) == (0, 0, 0)
    h.run_and_check()
    assert (accounts["beta"].max_blocks, accounts["acme"].reserved, accounts["gamma"].reserved) == (5, 0, 10)


def test_executors_that_join_later_have_the_quotas_of_now():
    h = Harness(num_blocks=20, block_size=4)
    change(h, acme=Quota(max_blocks=3, reserved_blocks=2))
    h.attach("executor-1")
    account = h.manager.replicas["executor-1"].memory.pool.accounts["acme"]
    assert (account.max_blocks, account.reserved) == (3, 2)
    change(h)
    assert (account.max_blocks, account.reserved) == (0, 0)
    assert h.manager.replicas["executor-1"].memory.pool.accounts.unrestricted


def test_weights_change_who_goes_next():
    h = Harness(num_blocks=100, block_size=4, policy="fair", max_sequences=1, max_batched_tokens=64)
    for index in range(12):
        h.submit(("acme", index), h.prompt(8), max_tokens=4, **of_acme())
        h.submit(("beta", index), h.prompt(8), max_tokens=4, **of_beta())
    change(h, acme=Quota(weight=5.0))
    while len(h.usage) < 12:
        h.step()
    assert sum(handle[0] == "acme" for handle in h.usage) >= 9
    h.run_and_check()
