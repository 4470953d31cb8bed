"""What events say of why something was decided, and how much was missing."""

from __future__ import annotations

import pytest

from kvmanager.accounts import Quota
from kvmanager.cost_model import Preemption
from kvmanager.events import Event, EventKind
from kvmanager.request import RequestState
from kvmanager.step import Speeds
from tests.kvmanager.harness import Harness


def only(h: Harness, kind: EventKind, handle: object) -> Event:
    (event,) = [event for event in h.events if event.kind is kind and event.handle == handle]
    return event


def test_how_many_blocks_are_missing():
    h = Harness(num_blocks=20, block_size=4)
    h.submit("first", h.prompt(48), max_tokens=20)
    h.step()
    h.submit("second", h.prompt(44), max_tokens=1)
    h.step()
    waited = only(h, EventKind.WAITED, "second")
    # Eleven for the prompt, where the first has twelve of twenty, or one more already.
    used = h.manager.replicas["executor-0"].memory.pool.num_referenced
    assert (waited.detail, waited.amount) == ("blocks", 11 + used - 20)
    assert h.request("second").num_missing == waited.amount
    h.run_and_check()


def test_how_many_blocks_a_tenant_is_above_its_limit():
    h = Harness(num_blocks=40, block_size=4, quotas={"default": Quota(max_blocks=10)})
    h.submit("first", h.prompt(24), max_tokens=4)
    h.submit("second", h.prompt(24), max_tokens=4)
    h.step()
    waited = only(h, EventKind.WAITED, "second")
    assert (waited.detail, waited.amount) == ("tenant_limit", 2)
    h.run_and_check()


def test_how_many_sequences_are_too_many():
    h = Harness(num_blocks=100, block_size=4, max_sequences=4)
    h.submit("first", h.prompt(10), n=3)
    h.submit("second", h.prompt(10), n=3)
    h.step()
    waited = only(h, EventKind.WAITED, "second")
    assert (waited.detail, waited.amount) == ("max_sequences", 2)
    h.run_and_check()


@pytest.mark.parametrize("preemption", [Preemption.SWAP, Preemption.RECOMPUTE])
def test_for_whom_a_request_is_preempted(preemption: Preemption):
    h = Harness(
        num_blocks=12, block_size=2, num_host_blocks=20, preemption=preemption, speeds=Speeds(1.0, 2.0, 3.0, 4.0)
    )
    h.submit("a", h.prompt(6), max_tokens=17)
    h.submit("b", h.prompt(6), max_tokens=17)
    while h.request("b").state not in (RequestState.SWAPPED, RequestState.PREEMPTED):
        h.step()
    event = next(event for event in h.events if event.kind is EventKind.PREEMPTED)
    assert (event.handle, event.detail, event.cause, event.other) == ("b", preemption.value, "blocks", "a")
    h.run_and_check()


def test_what_went_wrong():
    h = Harness()
    h.submit("late", h.prompt(10), deadline=1.0)
    h.submit("gone", h.prompt(10))
    h.submit("done", h.prompt(10))
    h.step()
    h.expire(2.0)
    h.abort("gone")
    h.run()
    said = {handle: only(h, EventKind.FINISHED, handle) for handle in ("late", "gone", "done")}
    assert (said["late"].detail, said["late"].cause) == ("DeadlineExceeded", "the request's time is over")
    assert (said["gone"].detail, said["gone"].cause) == ("abort", "")
    assert (said["done"].detail, said["done"].cause) == ("done", "")


def test_what_each_tenant_has_had_adds_up():
    h = Harness(num_blocks=30, block_size=2)
    for handle in range(12):
        h.submit(handle, h.prompt(h.rng.randrange(2, 20)), tenant=h.rng.choice(["acme", "beta"]))
    h.run_and_check()
    ended = h.counters.ended.values()
    for field in ("prompt_tokens", "cached_prompt_tokens", "generated_tokens", "preemptions"):
        assert sum(getattr(each, field) for each in ended) == getattr(h.counters, field)
