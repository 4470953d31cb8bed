"""How many requests may wait, and what those are told that are too many."""

from __future__ import annotations

import random

import pytest

from kvmanager.errors import InvalidRequest, QueueFull
from kvmanager.limits import Limits
from kvmanager.queue_bounds import MAX_RETRY_SECONDS, MIN_RETRY_SECONDS, QueueBounds
from kvmanager.spec import PinOrder, RequestSpec
from tests.kvmanager.harness import Harness


def request(handle: object, tenant: str = "acme", length: int = 10) -> RequestSpec:
    return RequestSpec(handle, [1] * length, tenant=tenant)


def full_queue(max_requests: int, now: float = 0.0) -> QueueBounds:
    bounds = QueueBounds(Limits(8, 8, max_requests))
    for index in range(max_requests):
        bounds.joined(request(index), now)
    return bounds


def refusal(bounds: QueueBounds, spec: RequestSpec, now: float) -> QueueFull:
    with pytest.raises(QueueFull) as caught:
        bounds.check(spec, now)
    return caught.value


# What may wait


def test_each_limit_refuses_at_once_and_says_which_it_was():
    h = Harness(
        max_waiting_requests=4,
        max_waiting_tokens=100,
        max_waiting_requests_per_tenant=2,
        max_waiting_tokens_per_tenant=60,
    )
    h.submit("a1", h.prompt(30), tenant="acme")
    with pytest.raises(QueueFull, match="60 tokens of prompts of acme") as caught:
        h.submit("a2", h.prompt(31), tenant="acme")
    assert caught.value.tenant == "acme"
    h.submit("a2", h.prompt(30), tenant="acme")
    with pytest.raises(QueueFull, match="2 requests of acme"):
        h.submit("a3", h.prompt(3), tenant="acme")
    with pytest.raises(QueueFull, match="100 tokens of prompts in all") as caught:
        h.submit("b1", h.prompt(41), tenant="beta")
    assert caught.value.tenant is None
    h.submit("b1", h.prompt(3), tenant="beta")
    h.submit("c1", h.prompt(3), tenant="gamma")
    with pytest.raises(QueueFull, match="4 requests in all"):
        h.submit("d1", h.prompt(3), tenant="delta")
    h.manager.check_integrity()
    h.run_and_check()
    h.submit("d1", h.prompt(3), tenant="delta")
    h.run_and_check()


def test_limits_of_zero_are_none():
    h = Harness(max_waiting_requests=0)
    for index in range(300):
        h.submit(index, h.prompt(3), max_tokens=1)
    h.run_and_check()


def test_a_prompt_longer_than_the_limit_is_let_in_alone():
    h = Harness(max_waiting_tokens=20)
    h.submit("long", h.prompt(30))
    with pytest.raises(QueueFull):
        h.submit("short", h.prompt(1))
    h.step()
    h.submit("short", h.prompt(1))
    with pytest.raises(QueueFull):
        h.submit("long too", h.prompt(30))
    h.run_and_check()


def test_only_those_count_that_wait_for_their_first_turn():
    h = Harness(num_blocks=12, block_size=2, max_waiting_requests=1)
    h.submit("a", h.prompt(6), max_tokens=16)
    h.step()
    h.submit("b", h.prompt(5), max_tokens=8, n=2)
    while h.counters.preemptions == 0:
        h.step()
    assert h.manager.num_waiting == 1
    h.submit("c", h.prompt(3))
    h.run_and_check()


@pytest.mark.parametrize("leaves", ["abort", "deadline", "loss"])
def test_a_place_is_free_when_a_request_leaves(leaves):
    h = Harness(max_waiting_requests=1, max_waiting_tokens_per_tenant=10)
    h.detach()
    h.submit("a", h.prompt(8), deadline=5.0)
    with pytest.raises(QueueFull):
        h.submit("b", h.prompt(8))
    if leaves == "abort":
        h.abort("a")
    elif leaves == "deadline":
        h.expire(5.0)
    else:
        h.attach()
        h.step()
        h.detach()
        assert h.manager.num_waiting == 1, "it waits again, but was let in"
    h.submit("b", h.prompt(8))
    h.manager.check_integrity()


def test_a_request_that_is_refused_for_something_else_takes_no_place():
    h = Harness(num_blocks=8, block_size=4, max_waiting_requests=1)
    with pytest.raises(InvalidRequest):
        h.submit("too long", h.prompt(100))
    h.pin("kept", h.prompt(8))
    h.run()
    h.submit("fits", h.prompt(4), max_tokens=4)
    h.run()
    assert set(h.usage) == {"fits", ("pin", "kept")}


def test_pins_wait_like_others_but_not_when_they_are_computed_again():
    h = Harness(block_size=4, max_waiting_requests=1)
    h.pin("kept", h.prompt(8))
    with pytest.raises(QueueFull):
        h.submit("pin too", h.prompt(8), pin=PinOrder("too", 9.0))
    h.run()
    h.lose_and_return()
    h.submit("a", h.prompt(4))
    h.run_and_check()


# When to try again


def test_the_faster_the_queue_moves_the_sooner():
    waits = []
    for seconds_between in (0.01, 0.1, 1.0, 10.0):
        bounds, now = full_queue(100), 0.0
        for index in range(50):
            now += seconds_between
            bounds.left(index, now)
            bounds.joined(request(100 + index), now)
        waits.append(refusal(bounds, request("late"), now).retry_after)
    assert waits == sorted(waits)
    assert waits[0] == MIN_RETRY_SECONDS
    assert waits[2] == pytest.approx(1.0, rel=0.1)
    assert waits[3] == pytest.approx(10.0, rel=0.2)


def test_each_is_told_a_later_time_than_those_who_were_refused_before():
    bounds, now = full_queue(10), 0.0
    for index in range(5):
        now += 0.5
        bounds.left(index, now)
        bounds.joined(request(10 + index), now)
    waits = [refusal(bounds, request(f"late {index}"), now).retry_after for index in range(8)]
    assert waits == sorted(waits)
    assert waits[7] == pytest.approx(8 * waits[0])
    assert refusal(bounds, request("later"), now + 60.0).retry_after > 0
    assert len(bounds._all.returns) <= 1, "who is back is not waited for any more"


def test_one_who_needs_more_room_waits_longer():
    def queue() -> QueueBounds:
        bounds = QueueBounds(Limits(8, 8, 100, max_waiting_tokens=100))
        for index in range(10):
            bounds.joined(request(index), 0.0)
        return bounds

    short, long = (refusal(queue(), request("late", length=length), 1.0).retry_after for length in (10, 50))
    assert long == pytest.approx(5 * short)


def test_the_advice_has_bounds():
    bounds = full_queue(1)
    assert refusal(bounds, request("late"), 10_000.0).retry_after == MAX_RETRY_SECONDS
    assert not bounds._all.returns, "beyond the bound nobody is counted"
    bounds = full_queue(200)
    for index in range(100):
        bounds.left(index, 1e-6 * index)
        bounds.joined(request(200 + index), 1e-6 * index)
    assert refusal(bounds, request("late"), 1e-3).retry_after == MIN_RETRY_SECONDS


def test_what_a_tenant_hears_of_its_own_limit_does_not_depend_on_others():
    heard = []
    for others in (0, 50):
        rng = random.Random(3)
        bounds = QueueBounds(Limits(8, 8, 1000, max_waiting_requests_per_tenant=5))
        now = 0.0
        for index in range(others):
            bounds.joined(request(("other", index), "beta", length=200), now)
        for index in range(20):
            now += rng.random()
            if index >= 5:
                bounds.left(("own", index - 5), now)
            bounds.joined(request(("own", index)), now)
        for index in range(others):
            bounds.left(("other", index), now)
        refused = refusal(bounds, request("late"), now)
        heard.append((str(refused), refused.retry_after, refused.tenant))
    assert heard[0] == heard[1]


def test_tenants_that_have_left_take_no_room():
    bounds = QueueBounds(Limits(8, 8, 10))
    for index in range(1000):
        bounds.joined(request(index, tenant=f"tenant-{index}"), float(index))
        bounds.left(index, float(index))
    assert not bounds._tenants
    bounds.check_integrity(set())
