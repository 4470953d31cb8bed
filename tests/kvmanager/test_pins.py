"""Pinned prefixes: computed once, resident whatever comes, charged, and gone when their time is over."""

from __future__ import annotations

import pytest

from kvmanager.accounts import Quota
from kvmanager.capacity import Capacity
from kvmanager.cost_model import Preemption
from kvmanager.errors import DeadlineExceeded, InvalidRequest, PinRefused
from kvmanager.events import EventKind
from kvmanager.spec import PinOrder, RequestSpec, Scope
from kvmanager.views import tenant_views
from tests.kvmanager.harness import FIRST, Harness

ACME = Scope(b"acme", "acme", 1)
DOCS = Scope(b"docs", "shared:docs", 0)


def pinned(length: int = 16, **options: object) -> tuple[Harness, list[int]]:
    """A harness with a pinned prefix, and that prefix."""
    h = Harness(**{"num_blocks": 16, "block_size": 4, **options})  # type: ignore[arg-type]
    prefix = h.prompt(length)
    h.pin("kept", prefix)
    h.run()
    return h, prefix


def pin_ids(h: Harness, tenant: str = "default") -> list[str]:
    return [pin.pin_id for pin in h.manager.list_pins(tenant)]


def fill_memory(h: Harness, *names: str) -> None:
    """Others use all the memory there is."""
    for name in names:
        h.submit(name, h.prompt(40), max_tokens=6)
    h.run()


def test_a_pinned_prefix_is_computed_once():
    h, prefix = pinned()
    assert h.prefilled_tokens(("pin", "kept")) == 16
    for name in ("a", "b"):
        h.submit(name, [*prefix, *h.prompt(3)], max_tokens=4)
    h.run_and_check()
    assert [h.usage[name].cached_tokens for name in ("a", "b")] == [16, 16]
    assert h.usage["pin", "kept"].prompt_tokens == 16
    assert h.usage["pin", "kept"].completion_tokens == 0
    assert ("pin", "kept") not in {handle for handle, _ in h.output}


def test_what_is_cached_already_is_pinned_without_computing_it_again():
    h = Harness(block_size=4)
    prefix = h.prompt(16)
    h.submit("a", prefix, max_tokens=2)
    h.run()
    h.pin("kept", prefix)
    h.run()
    assert h.prefilled_tokens(("pin", "kept")) == 1
    assert h.referenced_blocks == 4


def test_it_stays_under_memory_pressure():
    h, prefix = pinned()
    fill_memory(h, "x", "y", "z")
    evicted = h.replica.memory.device.cache.num_evicted
    assert evicted > 0
    h.submit("a", [*prefix, 1], max_tokens=4)
    h.run_and_check()
    assert h.usage["a"].cached_tokens == 16


def test_without_the_pin_it_does_not_stay():
    h, prefix = pinned()
    assert h.manager.unpin("default", "kept", h.now)
    fill_memory(h, "x", "y", "z")
    h.submit("a", [*prefix, 1], max_tokens=4)
    h.run_and_check()
    assert h.usage["a"].cached_tokens == 0


def test_only_full_blocks_are_kept():
    h, _ = pinned(length=18)
    assert h.referenced_blocks == 4


def test_it_is_charged_to_its_scopes_owner():
    h = Harness(block_size=4)
    h.pin("kept", h.prompt(16), spans=((8, DOCS), (8, ACME)), tenant="acme")
    h.run()
    views = {view.owner: (view.charged_blocks, view.pinned_blocks) for view in tenant_views(h.manager)}
    assert views["acme"] == views["shared:docs"] == (2, 2)
    assert pin_ids(h, "acme") == ["kept"]
    assert pin_ids(h, "shared:docs") == []


def test_its_time_begins_when_it_has_been_computed():
    h = Harness(block_size=4, max_batched_tokens=16)
    h.pin("kept", h.prompt(40), ttl=10.0)
    assert pin_ids(h) == []
    h.now = 100.0
    h.run()
    assert pin_ids(h) == ["kept"]
    assert h.manager.next_deadline() == 110.0
    h.expire(109.9)
    assert h.referenced_blocks == 10
    h.expire(110.0)
    assert h.referenced_blocks == 0
    assert pin_ids(h) == []
    assert h.manager.next_deadline() is None
    assert not h.errors


def test_what_was_pinned_may_be_found_until_it_is_evicted():
    h, prefix = pinned()
    h.expire(60.0)
    h.submit("a", [*prefix, 1], max_tokens=4)
    h.run_and_check()
    assert h.usage["a"].cached_tokens == 16


def test_only_its_own_tenant_can_unpin():
    h, _ = pinned()
    assert not h.manager.unpin("beta", "kept", h.now)
    assert h.referenced_blocks == 4
    assert h.manager.unpin("default", "kept", h.now)
    assert not h.manager.unpin("default", "kept", h.now)
    assert h.referenced_blocks == 0


def test_a_request_that_uses_it_keeps_its_blocks_when_it_is_let_go_of():
    h, prefix = pinned()
    h.submit("a", [*prefix, 1], max_tokens=12)
    h.step()
    h.manager.unpin("default", "kept", h.now)
    fill_memory(h, "x", "y")
    h.run_and_check()


def test_a_pin_of_the_same_name_is_refused():
    h, _ = pinned()
    with pytest.raises(InvalidRequest, match="exists") as caught:
        h.submit("other", h.prompt(16), max_tokens=1, pin=PinOrder("kept", 5.0))
    assert caught.value.field == "pin_id"
    assert h.referenced_blocks == 4


def test_a_prefix_shorter_than_a_block_is_refused():
    h = Harness(block_size=4)
    with pytest.raises(InvalidRequest, match="3 tokens"):
        h.pin("kept", h.prompt(3))
    assert list(h.manager.pins) == []


def test_a_pin_is_refused_where_a_request_that_is_here_could_not_finish():
    h = Harness(num_blocks=16, block_size=4)
    h.submit("a", h.prompt(20), max_tokens=29)  # 12 blocks
    h.step()
    with pytest.raises(PinRefused, match="the pin's 5 blocks would leave too few") as refused:
        h.pin("kept", h.prompt(20), tenant="acme")
    assert "12" not in str(refused.value), "how large another tenant's request is"
    assert list(h.manager.pins) == []
    h.pin("smaller", h.prompt(16))
    h.run_and_check()
    assert pin_ids(h) == ["smaller"]


def test_a_pin_is_refused_that_would_strand_what_waits_too():
    h = Harness(num_blocks=16, block_size=4)
    h.submit("a", h.prompt(40), max_tokens=20)
    h.submit("waits", h.prompt(40), max_tokens=20)
    h.step()
    h.abort("a")
    with pytest.raises(PinRefused):
        h.pin("kept", h.prompt(8))
    h.run()
    h.check_answers()
    h.check_nothing_is_left()


def test_a_request_that_a_pin_leaves_too_little_is_refused():
    h, _ = pinned(length=40)
    with pytest.raises(InvalidRequest):
        h.submit("a", h.prompt(20), max_tokens=10)
    h.submit("b", h.prompt(20), max_tokens=5)  # six blocks
    h.run_and_check()


@pytest.mark.parametrize("preemption", [Preemption.SWAP, Preemption.RECOMPUTE])
def test_a_pin_whose_request_is_preempted_is_computed_in_the_end(preemption):
    h = Harness(19, 4, max_batched_tokens=8, max_sequences=8, num_host_blocks=40, preemption=preemption)
    for name in ("a", "b"):
        h.submit(name, h.prompt(4), max_tokens=8, n=3)
    for _ in range(2):
        h.step()
    prefix = h.prompt(24)
    h.pin("kept", prefix)
    h.run_and_check()
    assert h.details(EventKind.PREEMPTED, ("pin", "kept"))
    assert pin_ids(h) == ["kept"]
    h.submit("c", [*prefix, 1], max_tokens=2)
    h.run_and_check()
    assert h.usage["c"].cached_tokens == 24


@pytest.mark.parametrize("preemption", [Preemption.SWAP, Preemption.RECOMPUTE])
def test_a_pin_that_is_preempted_when_its_prompt_has_just_been_computed(preemption):
    h = Harness(num_blocks=13, block_size=4, num_host_blocks=40, preemption=preemption)
    for name in ("a", "b"):
        h.submit(name, h.prompt(4), max_tokens=5, n=3)
    h.pin("kept", h.prompt(24))
    h.schedule()
    h.schedule()
    assert h.details(EventKind.PREEMPTED, ("pin", "kept")) == [preemption.value]
    h.run_and_check()
    assert pin_ids(h) == ["kept"]


def test_a_pin_that_waits_for_its_turn_can_run_out_of_time():
    h = Harness(num_blocks=16, block_size=4, max_sequences=1)
    h.submit("a", h.prompt(16), max_tokens=20)
    h.pin("kept", h.prompt(20), deadline=5.0)
    h.step()
    h.expire(5.0)
    assert isinstance(h.errors.pop(("pin", "kept")), DeadlineExceeded)
    assert list(h.manager.pins) == []
    h.run()
    h.check_nothing_is_left()


def test_a_deadline_of_the_order_does_not_hold_for_the_pin():
    h = Harness(block_size=4)
    h.pin("kept", h.prompt(16), ttl=60.0, deadline=5.0)
    h.run()
    h.expire(10.0)
    assert pin_ids(h) == ["kept"]


# When its executor is lost


def test_after_a_loss_it_is_computed_again_and_keeps_its_time():
    h, prefix = pinned()
    h.now = 20.0
    ends = len(h.usage)
    h.lose_and_return()
    h.run()
    assert h.referenced_blocks == 4
    assert len(h.usage) == ends, "no gateway hears of it"
    assert not h.errors
    h.submit("a", [*prefix, 1], max_tokens=4)
    h.run_and_check()
    assert h.usage["a"].cached_tokens == 16
    h.expire(59.9)
    assert pin_ids(h) == ["kept"]
    h.expire(60.0)
    assert h.referenced_blocks == 0


def test_after_a_loss_it_is_computed_again_elsewhere():
    h, prefix = pinned(num_executors=2)
    (pin,) = h.manager.pins
    assert pin.replica is not None
    lost = pin.replica.name
    h.detach(lost)
    h.run()
    assert h.referenced_blocks == 4
    h.submit("a", [*prefix, 1], max_tokens=4)
    h.run_and_check()
    assert h.usage["a"].cached_tokens == 16


@pytest.mark.parametrize("num_steps", [0, 1, 2])
def test_a_pin_that_is_being_computed_when_its_executor_is_lost_is_computed_on_the_next(num_steps):
    h = Harness(block_size=4, max_batched_tokens=16)
    h.pin("kept", h.prompt(40))
    for _ in range(num_steps):
        h.step()
    h.lose_and_return()
    h.run()
    assert h.usage["pin", "kept"].prompt_tokens == 40
    assert pin_ids(h) == ["kept"]
    assert h.referenced_blocks == 10


@pytest.mark.parametrize("after_a_loss", [True, False])
def test_a_pin_that_waits_when_an_executor_joins_may_need_most_of_one(after_a_loss):
    h = Harness(num_blocks=16, block_size=4)
    if after_a_loss:
        h.pin("kept", h.prompt(48))
        h.run()
        h.lose_and_return()
    else:
        h.submit("running", h.prompt(5), max_tokens=20)
        h.step()
        h.pin("kept", h.prompt(32))
        h.attach("larger", Capacity(40, 4, 200))
    h.run()
    assert not h.errors
    assert pin_ids(h) == ["kept"]


def test_unpinned_while_it_is_computed_again():
    h, _ = pinned(length=40, max_batched_tokens=16)
    h.lose_and_return()
    h.step()
    assert h.referenced_blocks == 10
    assert h.manager.unpin("default", "kept", h.now)
    h.run()
    h.check_nothing_is_left()
    assert not h.errors
    assert pin_ids(h) == []


def test_expired_while_there_is_no_executor():
    h, _ = pinned()
    h.detach()
    h.expire(60.0)
    h.attach()
    h.run()
    assert h.referenced_blocks == 0
    assert not h.errors


def test_a_pin_that_fits_on_no_executor_any_more_is_back_when_one_is():
    h, prefix = pinned(length=40)
    h.detach()
    h.attach(capacity=Capacity(5, 4, 200))
    h.run()
    assert h.referenced_blocks == 0
    h.attach("larger", Capacity(40, 4, 200))
    h.run()
    assert h.referenced_blocks == 10
    h.submit("a", [*prefix, 1], max_tokens=4)
    h.run_and_check()
    assert h.usage["a"].cached_tokens == 40


def test_a_pin_does_not_take_what_is_reserved_for_others():
    h = Harness(num_blocks=16, block_size=4, quotas={"beta": Quota(reserved_blocks=8)})
    with pytest.raises((InvalidRequest, PinRefused)):
        h.pin("kept", h.prompt(40), scope=ACME, tenant="acme")
    h.pin("smaller", h.prompt(28), scope=ACME, tenant="acme")
    h.run()
    assert pin_ids(h, "acme") == ["smaller"]


def test_a_pin_does_not_exceed_its_owners_limit():
    h = Harness(num_blocks=40, block_size=4, quotas={"acme": Quota(max_blocks=6)})
    with pytest.raises((InvalidRequest, PinRefused)):
        h.pin("kept", h.prompt(40), scope=ACME, tenant="acme")
    assert list(h.manager.pins) == []


def test_a_gateways_request_may_have_the_name_of_a_pin():
    """A pin that is computed again has a name of its own."""
    h = Harness(block_size=4)
    h.pin("kept", h.prompt(40))
    h.run()
    h.submit("kept", h.prompt(8), max_tokens=20)
    h.step()
    h.lose_and_return()
    h.step()
    h.manager.unpin("default", "kept", h.now)
    h.run()
    assert h.output["kept", 0] == h.expected("kept")


def test_a_pin_reports_its_progress_when_asked_the_first_time_only():
    h = Harness(block_size=4, max_batched_tokens=16)
    spec = RequestSpec("order", h.prompt(40), max_tokens=1, pin=PinOrder("kept", 60.0), report_progress=True)
    h.manager.submit(spec, h.now)
    h.specs["order"] = spec
    h.run()
    assert [each.computed_tokens for each in h.progress] == [16, 32, 40]
    h.progress.clear()
    h.lose_and_return(FIRST)
    h.run()
    assert h.progress == []
