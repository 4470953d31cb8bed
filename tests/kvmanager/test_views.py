"""What can be seen from outside: totals, and the physical map as it changes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kvmanager import memory_watch
from kvmanager.cost_model import Preemption
from kvmanager.kv_events import Tier
from kvmanager.memory_watch import MemoryChanges, MemoryWatch
from kvmanager.request import RequestState
from kvmanager.shares import share_views, tenant_counters
from kvmanager.spec import Scope
from kvmanager.step import Speeds
from kvmanager.views import BlockView, block_views, num_evicted, replica_views
from tests.kvmanager.harness import FIRST, Harness

ACME = Scope(b"acme", "acme", 1)


class Map:
    """What somebody knows who has heard nothing but the changes."""

    def __init__(self) -> None:
        self.blocks: dict[str, dict[tuple[Tier, int], BlockView]] = {}

    def hear(self, changes: Iterable[MemoryChanges]) -> None:
        for change in changes:
            if change.removed:
                del self.blocks[change.executor]
                continue
            if change.snapshot:
                self.blocks[change.executor] = {}
            self.blocks[change.executor].update({(each.tier, each.block_id): each for each in change.blocks})

    def check(self, h: Harness) -> None:
        assert self.blocks.keys() == h.manager.replicas.keys()
        for name, replica in h.manager.replicas.items():
            assert list(self.blocks[name].values()) == block_views(replica)


# Totals


def test_blocks_by_state_add_up():
    h = Harness(num_blocks=20, block_size=4, num_host_blocks=10)
    h.submit("earlier", h.prompt(12), max_tokens=1)
    h.run()
    h.submit("a", h.prompt(10), max_tokens=8)
    h.step()
    (view,) = replica_views(h.manager)
    assert (view.device.free_blocks, view.device.cached_blocks, view.device.referenced_blocks) == (14, 3, 3)
    assert view.device.num_blocks == 20
    assert (view.host.num_blocks, view.host.free_blocks) == (10, 10)


def test_requests_are_counted_where_they_are():
    h = Harness(
        num_blocks=12, block_size=2, num_host_blocks=20, preemption=Preemption.SWAP, speeds=Speeds(1.0, 2.0, 3.0, 4.0)
    )
    h.submit("a", h.prompt(6), max_tokens=17)
    h.submit("b", h.prompt(6), max_tokens=17)
    while h.request("b").state is not RequestState.SWAPPED:
        h.step()
    h.submit("c", h.prompt(6), max_tokens=17)
    h.step()
    h.manager.drain_executor(FIRST, h.now)
    (view,) = replica_views(h.manager)
    assert (view.running_requests, view.swapped_requests, view.waiting_requests) == (1, 1, 0)
    assert h.manager.num_waiting == 1, "it has no executor any more"
    assert view.draining
    assert view.speeds == Speeds(1.0, 2.0, 3.0, 4.0)


def test_evictions_are_counted_beyond_an_executors_life():
    h = Harness(num_blocks=4, block_size=4)
    for index in range(3):
        h.submit(index, h.prompt(12), max_tokens=1)
        h.run()
    before = num_evicted(h.manager)
    assert before == 5
    h.lose_and_return()
    assert num_evicted(h.manager) == before


# The map


def test_the_map_says_what_each_block_is():
    h = Harness(num_blocks=6, block_size=4)
    h.submit("a", h.prompt(6), max_tokens=7, n=2, scope=ACME)
    h.schedule()
    first, last, *free = block_views(h.replica)
    assert first == BlockView(0, Tier.DEVICE, 2, True, "acme", 4, first.identity)
    assert len(first.identity) == 32
    assert last == BlockView(1, Tier.DEVICE, 2, False, "acme", 2, b"")
    assert free == [BlockView(index, Tier.DEVICE, 0, False, "", 0, b"") for index in range(2, 6)]


def test_the_map_shows_both_tiers():
    h = Harness(num_blocks=12, block_size=2, num_host_blocks=12, preemption=Preemption.SWAP, prefix_caching=False)
    h.submit("a", h.prompt(6), max_tokens=17)
    h.submit("b", h.prompt(6), max_tokens=17, scope=ACME)
    while h.request("b").state is not RequestState.SWAPPED:
        h.step()
    host = [view for view in block_views(h.replica) if view.tier is Tier.HOST and view.reference_count]
    (sequence,) = h.request("b").sequences
    assert [view.block_id for view in host] == sorted(block.block_id for block in sequence.host_table)
    assert {view.owner for view in host} == {"acme"}
    assert sum(view.fill for view in host) == sequence.num_computed


def test_a_cached_block_keeps_its_owner_and_its_identity():
    h = Harness(num_blocks=6, block_size=4)
    h.submit("a", h.prompt(5), max_tokens=1, scope=ACME)
    h.run()
    (cached,) = [view for view in block_views(h.replica) if view.cached]
    assert (cached.reference_count, cached.owner, cached.fill) == (0, "acme", 4)


# Changes


def test_first_all_blocks_come_then_only_those_that_changed():
    h = Harness(num_blocks=30, block_size=4, num_host_blocks=5)
    watch = MemoryWatch(h.manager)
    device, host = watch.changes()
    assert (device.snapshot, host.snapshot) == (True, False)
    assert (len(device.blocks), device.num_device_blocks, device.num_host_blocks) == (30, 30, 5)
    assert len(host.blocks) == 5
    assert list(watch.changes()) == []
    h.submit("a", h.prompt(10), max_tokens=20)
    h.schedule()
    (change,) = watch.changes()
    assert not change.snapshot
    assert [view.block_id for view in change.blocks] == h.table("a")


def test_a_step_that_fills_a_slot_changes_one_block():
    h = Harness(num_blocks=30, block_size=4)
    watch = MemoryWatch(h.manager)
    h.submit("a", h.prompt(9), max_tokens=20)
    h.schedule()
    list(watch.changes())
    h.schedule()
    (change,) = watch.changes()
    assert [(view.block_id, view.fill) for view in change.blocks] == [(h.table("a")[2], 2)]


def test_two_who_watch_do_not_take_from_each_other():
    h = Harness(num_blocks=30, block_size=4)
    watches, maps = [MemoryWatch(h.manager) for _ in range(2)], [Map(), Map()]
    h.submit("a", h.prompt(9), max_tokens=12)
    maps[0].hear(watches[0].changes())
    h.step()
    for watch, each in zip(watches, maps, strict=True):
        each.hear(watch.changes())
        each.check(h)
    h.run()
    maps[1].hear(watches[1].changes())
    maps[1].check(h)
    watches[1].close()
    maps[0].hear(watches[0].changes())
    maps[0].check(h)


def test_nothing_is_noted_for_nobody():
    h = Harness(num_blocks=30, block_size=4)
    watch = MemoryWatch(h.manager)
    list(watch.changes())
    watch.close()
    assert h.replica.memory.pool.journals == h.replica.memory.host.pool.journals == []


def test_executors_that_come_go_and_come_back():
    h = Harness(num_blocks=10, block_size=4)
    watch, seen = MemoryWatch(h.manager), Map()
    seen.hear(watch.changes())
    h.attach("second")
    seen.hear(watch.changes())
    seen.check(h)
    h.submit("a", h.prompt(9), max_tokens=12)
    h.step()
    h.lose_and_return(FIRST)
    (change,) = watch.changes()
    assert change.snapshot
    seen.hear([change])
    seen.check(h)
    h.detach("second")
    (change,) = watch.changes()
    assert change.removed
    seen.hear([change])
    seen.check(h)
    h.run()


def test_what_changes_while_the_first_look_is_told_comes_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_watch, "PIECE_BLOCKS", 4)
    h = Harness(num_blocks=30, block_size=2, num_host_blocks=6)
    watch, seen = MemoryWatch(h.manager), Map()
    for number, piece in enumerate(watch.changes()):
        h.submit(number, h.prompt(9), max_tokens=4)
        h.step()
        assert len(piece.blocks) <= 4
        seen.hear([piece])
    assert number == 9
    seen.hear(watch.changes())
    seen.check(h)
    h.run_and_check()


def test_an_executor_that_is_lost_while_the_first_look_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_watch, "PIECE_BLOCKS", 4)
    h = Harness(num_blocks=30, block_size=2)
    watch, seen = MemoryWatch(h.manager), Map()
    pieces = watch.changes()
    seen.hear([next(pieces)])
    h.lose_and_return()
    seen.hear(pieces)
    seen.hear(watch.changes())
    seen.check(h)
    h.detach()
    seen.hear(watch.changes())
    seen.check(h)


@pytest.mark.parametrize("preemption", [Preemption.SWAP, Preemption.RECOMPUTE])
def test_a_map_made_of_changes_alone_is_the_real_one_at_any_time(preemption):
    h = Harness(
        num_blocks=14, block_size=2, num_host_blocks=20, max_batched_tokens=16, max_sequences=8, preemption=preemption
    )
    watch, seen = MemoryWatch(h.manager), Map()
    prefix = h.prompt(8)
    for index in range(30):
        h.submit(index, prefix[: h.rng.randrange(8)] + h.prompt(3), h.rng.randrange(1, 7), n=h.rng.choice([1, 1, 2]))
        for _ in range(h.rng.randrange(3)):
            h.schedule()
            seen.hear(watch.changes())
            seen.check(h)
            if h.oracle.pending:
                h.result()
                seen.hear(watch.changes())
                seen.check(h)
    h.run_and_check()
    seen.hear(watch.changes())
    seen.check(h)


def test_who_has_what_of_which_executor():
    h = Harness(num_blocks=30, block_size=4, num_executors=2, max_batched_tokens=32)
    for index, tenant in enumerate(["acme", "beta", "acme"]):
        h.submit(index, h.prompt(10), max_tokens=20, tenant=tenant, scope=Scope(tenant.encode(), tenant, 1))
    h.step()
    shares = share_views(h.manager)
    assert sum(share.running_requests for share in shares if share.tenant == "acme") == 2
    for name, replica in h.manager.replicas.items():
        own = [share for share in shares if share.executor == name]
        assert sum(share.referenced_device_blocks for share in own) == replica.memory.pool.num_referenced
        (view,) = [view for view in replica_views(h.manager) if view.executor == name]
        for field in ("sequences", "prefill_tokens", "decode_tokens"):
            assert sum(getattr(share.last_step, field) for share in own) == getattr(view.last_step, field)
    for name in list(h.manager.replicas):
        h.detach(name)
    assert {(share.tenant, share.executor, share.waiting_requests) for share in share_views(h.manager)} == {
        ("acme", "", 2),
        ("beta", "", 1),
    }


def test_what_tenants_have_had_only_grows():
    h = Harness(num_blocks=14, block_size=2, max_sequences=8, max_batched_tokens=16)
    for index in range(12):
        h.submit(index, h.prompt(5), max_tokens=8, n=1 + index % 2, tenant=("acme", "beta")[index % 2])
    before = dict.fromkeys(("acme", "beta"), (0, 0, 0, 0))
    for _ in range(400):
        if h.manager.idle:
            break
        h.step()
        for tenant, had in tenant_counters(h.manager).items():
            now = had.prompt_tokens, had.cached_prompt_tokens, had.generated_tokens, had.preemptions
            assert all(old <= new for old, new in zip(before[tenant], now, strict=True))
            before[tenant] = now
    assert before["acme"][2] == 6 * 8
    assert before["beta"][2] == 6 * 16
    assert h.counters.preemptions == before["acme"][3] + before["beta"][3] > 0
