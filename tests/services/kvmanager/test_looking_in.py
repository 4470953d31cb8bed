"""What others may see and watch: the memory map, its changes, KV events, and pins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from kvmanager.kv_events import KVEventLog
from octavo.client import OctavoError
from octavo.v1 import common_pb2, kvmanager_pb2
from services.rpc.columns import unpack_int32
from tests.oracle import expected_output
from tests.services.kvmanager.conftest import MakeRig, Rig
from tests.services.kvmanager.inner_gateway import PATIENCE
from tests.services.kvmanager.oracle_service import BLOCK_SIZE, OracleService
from tests.services.memory_picture import MemoryPicture

NO_STOP: frozenset[int] = frozenset()
FAST = Duration(nanos=20_000_000)


def prompt_of(number: int, length: int = 10) -> list[int]:
    """Prompts that share no block."""
    return [(number + 3 * index) % 50 for index in range(length)]


async def status_of(call: Any) -> OctavoError:
    with pytest.raises(grpc.RpcError) as caught:
        await call
    return OctavoError.from_rpc(caught.value)


# The memory map


async def test_nothing_to_see_before_the_first_executor(make_rig: MakeRig) -> None:
    rig = await make_rig(executors="127.0.0.1:1")
    assert (await status_of(rig.memory_map())).status == grpc.StatusCode.UNAVAILABLE
    request = kvmanager_pb2.ListTenantPinsRequest(tenant="acme")
    assert not (await rig.stub.ListTenantPins(request)).pins


async def test_the_map_says_whose_blocks_are_where(make_rig: MakeRig) -> None:
    one = OracleService(num_host_blocks=10)
    rig = await make_rig(one, tenants="acme:reserved=10,max=50,weight=2")
    scope = kvmanager_pb2.ScopeSpan(num_tokens=4, salt=b"shared", owner="shared:docs")
    own = kvmanager_pb2.ScopeSpan(num_tokens=8, salt=b"acme", owner="acme", narrowness=1)
    one.hold()
    reply = await rig.gateway.submit(prompt_of(1, 12), seed=1, max_tokens=1, tenant="acme", spans=[scope, own])
    await rig.eventually(lambda: rig.manager.counters.steps >= 1, "it runs")
    state = await rig.memory_map(include_blocks=True)
    (executor,) = state.executors
    assert (state.block_size, state.num_blocks, state.bytes_per_block) == (BLOCK_SIZE, 100, 1000)
    assert (state.running_requests, state.referenced_blocks) == (1, 3)
    assert (executor.device.num_blocks, executor.host.num_blocks) == (100, 10)
    device, host = executor.blocks[:100], executor.blocks[100:]
    assert {block.tier for block in device} == {common_pb2.TIER_DEVICE}
    assert [(block.tier, block.block_id) for block in host] == [(common_pb2.TIER_HOST, i) for i in range(10)]
    held = [block for block in executor.blocks if block.reference_count]
    assert sorted(block.owner for block in held) == ["acme", "acme", "shared:docs"]
    assert sorted(block.fill for block in held) == [4, 4, 4]
    tenants = {tenant.owner: tenant for tenant in state.tenants}
    assert set(tenants) == {"acme", "shared:docs"}
    acme = tenants["acme"]
    assert (acme.charged_blocks, acme.reserved_blocks, acme.max_blocks, acme.weight) == (2, 10, 50, 2.0)
    assert tenants["shared:docs"].charged_blocks == 1
    assert all(not executor.blocks for executor in (await rig.memory_map()).executors)
    one.go_on()
    await rig.gateway.finished(reply)
    await rig.when_idle()
    state = await rig.memory_map(include_blocks=True)
    cached = [block for block in state.executors[0].blocks if block.cached]
    assert len(cached) == state.cached_blocks == 3
    assert all(len(block.identity_prefix) == 8 for block in cached)
    assert {tenant.owner: tenant.cached_blocks for tenant in state.tenants} == {"acme": 2, "shared:docs": 1}


# Watching it


async def follow(picture: MemoryPicture, messages: AsyncIterator[kvmanager_pb2.WatchMemoryResponse]) -> None:
    async for message in messages:
        picture.take(message)


async def until_equal(rig: Rig, picture: MemoryPicture) -> None:
    end = asyncio.get_running_loop().time() + PATIENCE
    while not picture.equals(await rig.memory_map(include_blocks=True)):
        assert asyncio.get_running_loop().time() < end, "the watch and the map never agree"
        await asyncio.sleep(0.01)


async def test_a_watch_gives_the_map(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start, while requests run, when an executor is lost and comes back, and when one joins."""
    monkeypatch.setattr("services.kvmanager.views_codec.MESSAGE_BLOCKS", 7)
    one, two = OracleService(num_host_blocks=5), OracleService(num_blocks=30)
    rig = await make_rig(one)
    picture = MemoryPicture()
    watch = rig.stub.WatchMemory(kvmanager_pb2.WatchMemoryRequest(interval=FAST))
    following = asyncio.create_task(follow(picture, watch))
    await until_equal(rig, picture)
    assert len(picture.blocks) == 105
    replies = [await rig.gateway.submit(prompt_of(i), seed=i, max_tokens=80, n=3) for i in range(3)]
    for reply in replies:
        await rig.gateway.wait_for_tokens(reply, 60)
    one.hold()
    await until_equal(rig, picture)
    assert any(block.reference_count for block in picture.blocks.values())
    assert any(0 < block.fill < BLOCK_SIZE for block in picture.blocks.values())
    await two.start()
    rig.executors.append(two)
    await rig.stub.AddExecutor(kvmanager_pb2.AddExecutorRequest(address=two.address))
    await rig.eventually(rig.all_attached, "it has joined")
    await until_equal(rig, picture)
    await one.kill()
    await rig.eventually(lambda: list(rig.manager.replicas) == [two.address], "one is lost")
    await until_equal(rig, picture)
    assert set(picture.sizes) == {two.address}
    one.go_on()
    await one.start()
    for reply in replies:
        await rig.gateway.finished(reply)
    await rig.when_idle()
    await until_equal(rig, picture)
    following.cancel()


async def test_nothing_is_sent_while_nothing_changes(make_rig: MakeRig) -> None:
    """Later ones who watch see all, and then nothing either."""
    rig = await make_rig(OracleService())
    await rig.gateway.generate(prompt_of(1), max_tokens=5)
    pictures = [MemoryPicture(), MemoryPicture()]
    watches = [rig.stub.WatchMemory(kvmanager_pb2.WatchMemoryRequest(interval=FAST)) for _ in pictures]
    tasks = [asyncio.create_task(follow(picture, watch)) for picture, watch in zip(pictures, watches, strict=True)]
    for picture in pictures:
        await until_equal(rig, picture)
    await asyncio.sleep(0.2)  # ten times the interval
    assert [picture.num_messages for picture in pictures] == [1, 1]
    for task in tasks:
        task.cancel()


async def test_nothing_is_kept_for_a_watcher_who_has_left(make_rig: MakeRig) -> None:
    one = OracleService()
    rig = await make_rig(one)
    pool = rig.manager.replicas[one.address].memory.device.pool
    for leave in ("in a pause", "amid messages"):
        watch = rig.stub.WatchMemory(kvmanager_pb2.WatchMemoryRequest(interval=FAST))
        if leave == "in a pause":
            await watch.read()
        else:
            await rig.eventually(lambda: len(pool.journals) == 1, "it is watched")
        assert len(pool.journals) == 1
        watch.cancel()
        await rig.eventually(lambda: not pool.journals, "nobody watches any more")


@pytest.mark.parametrize(
    "interval", [Duration(), Duration(nanos=19_999_999), Duration(seconds=-1), Duration(seconds=3601)]
)
async def test_an_interval_out_of_its_limits(make_rig: MakeRig, interval: Duration) -> None:
    rig = await make_rig(OracleService())
    watch = rig.stub.WatchMemory(kvmanager_pb2.WatchMemoryRequest(interval=interval))
    error = await status_of(watch.read())
    assert (error.status, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, "interval")
    assert "it must be from 0.02 to 3600 s" in error.message


# KV events


class EventReader:
    """A subscription. Numbers without a gap, unless one is expected."""

    def __init__(self, rig: Rig, from_sequence_number: int = 0) -> None:
        request = kvmanager_pb2.SubscribeKvEventsRequest(from_sequence_number=from_sequence_number)
        self.call = rig.stub.SubscribeKvEvents(request)

    async def ready(self) -> None:
        """From here on it misses nothing."""
        await asyncio.wait_for(self.call.initial_metadata(), PATIENCE)

    async def next(self, count: int) -> list[tuple[int, str, kvmanager_pb2.KvEvent]]:
        """So many events, with their numbers and executors."""
        events: list[tuple[int, str, kvmanager_pb2.KvEvent]] = []
        while len(events) < count:
            message = await asyncio.wait_for(self.call.read(), PATIENCE)
            assert message.events
            for index, event in enumerate(message.events):
                events.append((message.sequence_number + index, message.executor, event))
        assert len(events) == count
        return events


async def test_events_tell_what_a_cache_holds(make_rig: MakeRig) -> None:
    """A reader that follows them knows each executor's cached blocks."""
    one = OracleService(num_blocks=8, num_host_blocks=6)
    rig = await make_rig(one)
    reader = EventReader(rig)
    await reader.ready()
    prompts = [prompt_of(i, 17) for i in range(4)]
    for prompt in prompts:
        await rig.gateway.generate(prompt, max_tokens=1)
    log = rig.manager.kv_events
    events = await reader.next(log.last_number)
    assert [number for number, _, _ in events] == list(range(1, log.last_number + 1))
    assert {executor for _, executor, _ in events} == {one.address}
    held: set[tuple[int, bytes]] = set()
    stored_tokens = []
    for _, _, event in events:
        kind = event.WhichOneof("event")
        assert kind in ("stored", "removed")
        block = getattr(event, kind)
        key = (block.tier, block.identity)
        assert (key in held) is (kind == "removed")
        held ^= {key}
        if kind == "stored" and block.tier == common_pb2.TIER_DEVICE:
            stored_tokens.append(unpack_int32(block.token_ids))
            assert bool(block.parent_identity) is (stored_tokens[-1] != block_start(prompts, stored_tokens[-1]))
    assert stored_tokens == [prompt[i : i + BLOCK_SIZE] for prompt in prompts for i in range(0, 16, BLOCK_SIZE)]
    state = await rig.memory_map(include_blocks=True)
    cached = {(block.tier, block.identity_prefix) for block in state.executors[0].blocks if block.cached}
    assert {(tier, identity[:8]) for tier, identity in held} == cached


def block_start(prompts: list[list[int]], tokens: list[int]) -> list[int] | None:
    """The first block of a prompt, if this is one."""
    return tokens if any(prompt[:BLOCK_SIZE] == tokens for prompt in prompts) else None


async def test_replay_and_what_comes_after_it(make_rig: MakeRig) -> None:
    rig = await make_rig(OracleService(), OracleService())
    for i in range(4):
        await rig.gateway.generate(prompt_of(i, 13), max_tokens=1)
    log = rig.manager.kv_events
    so_far = log.last_number
    assert so_far == 12
    everything = EventReader(rig, from_sequence_number=1)
    first = await everything.next(so_far)
    later = EventReader(rig, from_sequence_number=5)
    assert await later.next(so_far - 4) == first[4:]
    only_new = EventReader(rig)
    await only_new.ready()
    next_one = EventReader(rig, from_sequence_number=so_far + 1)
    await rig.gateway.generate(prompt_of(9, 13), max_tokens=1)
    new = await everything.next(3)
    assert [number for number, _, _ in new] == [13, 14, 15]
    for reader in (later, only_new, next_one):
        assert await reader.next(3) == new


async def test_a_newcomer_is_told_what_is_cached_and_then_what_comes(make_rig: MakeRig) -> None:
    """However long ago it was cached."""
    rig = await make_rig(OracleService(), OracleService())
    log = rig.manager.kv_events
    log._events = type(log._events)(log._events, maxlen=4)
    for i in range(4):
        await rig.gateway.generate(prompt_of(i, 13), max_tokens=1)
    so_far = log.last_number
    call = rig.stub.SubscribeKvEvents(kvmanager_pb2.SubscribeKvEventsRequest(current_blocks_first=True))
    told: dict[bytes, bytes] = {}
    while len(told) < so_far:
        message = await asyncio.wait_for(call.read(), PATIENCE)
        assert message.cached_before
        assert message.sequence_number == so_far + 1
        assert message.executor in {executor.address for executor in rig.executors}
        for event in message.events:
            assert event.stored.parent_identity in (b"", *told)
            told[event.stored.identity] = event.stored.token_ids
    prompts = [prompt_of(i, 13) for i in range(4)]
    blocks = [prompt[i : i + BLOCK_SIZE] for prompt in prompts for i in range(0, 12, BLOCK_SIZE)]
    assert sorted(unpack_int32(token_ids) for token_ids in told.values()) == sorted(blocks)
    await rig.gateway.generate(prompt_of(9, 13), max_tokens=1)
    message = await asyncio.wait_for(call.read(), PATIENCE)
    assert (message.sequence_number, message.cached_before) == (so_far + 1, False)
    call.cancel()


async def test_a_newcomer_is_told_that_nothing_is_cached(make_rig: MakeRig) -> None:
    rig = await make_rig(OracleService())
    call = rig.stub.SubscribeKvEvents(kvmanager_pb2.SubscribeKvEventsRequest(current_blocks_first=True))
    message = await asyncio.wait_for(call.read(), PATIENCE)
    assert (message.sequence_number, message.cached_before, len(message.events)) == (1, True, 0)
    call.cancel()


async def test_an_event_that_is_still_far_away_is_out_of_range(make_rig: MakeRig) -> None:
    """The numbers have begun anew since: waiting for this one would miss those before it."""
    rig = await make_rig(OracleService())
    error = await status_of(EventReader(rig, from_sequence_number=7).call.read())
    assert (error.status, error.field) == (grpc.StatusCode.OUT_OF_RANGE, "from_sequence_number")
    assert "the next event is 1" in error.message


async def test_what_is_no_longer_kept_shows_as_a_gap(make_rig: MakeRig) -> None:
    """At the start of a replay, and for a reader that is slower than the window is long."""
    one = OracleService()
    rig = await make_rig(one)
    log = rig.manager.kv_events
    log._events = type(log._events)(log._events, maxlen=5)
    for i in range(4):
        await rig.gateway.generate(prompt_of(i, 13), max_tokens=1)
    late = EventReader(rig, from_sequence_number=2)
    assert [number for number, _, _ in await late.next(5)] == [8, 9, 10, 11, 12]


async def test_a_lost_executor_s_blocks_are_cleared(make_rig: MakeRig) -> None:
    one, two = OracleService(), OracleService()
    rig = await make_rig(one, two)
    reader = EventReader(rig)
    await reader.ready()
    await one.kill()
    ((number, executor, event),) = await reader.next(1)
    assert (number, executor, event.WhichOneof("event")) == (1, one.address, "cleared")
    await rig.stub.DrainExecutor(kvmanager_pb2.DrainExecutorRequest(address=two.address))
    ((number, executor, event),) = await reader.next(1)
    assert (number, executor, event.WhichOneof("event")) == (2, two.address, "cleared")


def test_a_log_gives_what_it_has() -> None:
    assert KVEventLog().since(1) == (1, [])


# Pins


def pin(pin_id: str, ttl: float = 60.0) -> dict[str, Any]:
    return {"tenant": "acme", "pin": kvmanager_pb2.PinOrder(pin_id=pin_id, ttl_us=int(ttl * 1e6))}


async def pins_of(rig: Rig, tenant: str = "acme") -> list[Any]:
    return list((await rig.stub.ListTenantPins(kvmanager_pb2.ListTenantPinsRequest(tenant=tenant))).pins)


async def test_a_pin_from_its_making_to_its_end(make_rig: MakeRig) -> None:
    one = OracleService()
    rig = await make_rig(one)
    reply = await rig.gateway.generate(prompt_of(1, 11), **pin("p1"))
    assert not reply.sequences
    assert reply.usage.prompt_tokens == 11
    assert reply.usage.completion_tokens == 0
    (listed,) = await pins_of(rig)
    assert (listed.pin_id, listed.pinned_tokens, listed.pinned_blocks, listed.resident) == ("p1", 8, 2, True)
    assert 50 < listed.remaining.seconds < 60
    assert await pins_of(rig, "beta") == []
    state = await rig.memory_map()
    assert (state.referenced_blocks, state.running_requests) == (2, 0)
    (tenant,) = [each for each in state.tenants if each.owner == "acme"]
    assert (tenant.pinned_blocks, tenant.charged_blocks) == (2, 2)
    used = await rig.gateway.generate([*prompt_of(1, 11), 7], seed=3, max_tokens=5, tenant="acme")
    assert used.usage.cached_tokens >= 8
    assert used.sequences[0] == expected_output([*prompt_of(1, 11), 7], 3, 0, 5, NO_STOP)

    for tenant_name, pin_id in (("beta", "p1"), ("acme", "p2")):
        request = kvmanager_pb2.UnpinRequest(tenant=tenant_name, pin_id=pin_id)
        error = await status_of(rig.stub.Unpin(request))
        assert (error.status, error.field) == (grpc.StatusCode.NOT_FOUND, "pin_id")
    await rig.stub.Unpin(kvmanager_pb2.UnpinRequest(tenant="acme", pin_id="p1"))
    assert await pins_of(rig) == []
    assert (await rig.memory_map()).referenced_blocks == 0


async def test_a_pin_ends_with_its_time(make_rig: MakeRig) -> None:
    rig = await make_rig(OracleService())
    await rig.gateway.generate(prompt_of(1, 11), **pin("long"))
    await rig.gateway.generate(prompt_of(2, 11), **pin("short", ttl=0.5))
    assert (await rig.memory_map()).referenced_blocks == 4
    await rig.eventually(lambda: rig.manager.replicas and len(list(rig.manager.pins)) == 1, "its time is over")
    assert [each.pin_id for each in await pins_of(rig)] == ["long"]
    assert (await rig.memory_map()).referenced_blocks == 2


async def test_a_lost_pin_is_computed_again(make_rig: MakeRig) -> None:
    one = OracleService()
    rig = await make_rig(one)
    await rig.gateway.generate(prompt_of(1, 11), **pin("p1"))
    await one.kill()
    await rig.gateway.wait_for_backend(ready=False)
    (listed,) = await pins_of(rig)
    assert not listed.resident
    await one.start()
    await rig.gateway.wait_for_backend(ready=True)
    await rig.when_idle()
    (listed,) = await pins_of(rig)
    assert listed.resident
    assert (await rig.memory_map()).referenced_blocks == 2


async def test_a_pin_that_would_leave_others_too_little_is_refused(make_rig: MakeRig) -> None:
    one = OracleService(num_blocks=10)
    rig = await make_rig(one)
    one.hold()
    reply = await rig.gateway.submit(prompt_of(1, 10), seed=1, max_tokens=26)
    await rig.eventually(lambda: rig.manager.counters.steps >= 1, "it runs")
    refused = await rig.gateway.generate(prompt_of(2, 9), **pin("p1"))
    assert (refused.error.code, refused.error.reason) == (8, "PIN_REFUSED")
    assert refused.error.retry_after_us > 0
    assert await pins_of(rig) == []
    one.go_on()
    assert (await rig.gateway.finished(reply)).sequences[0] == expected_output(prompt_of(1, 10), 1, 0, 26, NO_STOP)


@pytest.mark.parametrize(
    ("method", "fields", "field"),
    [
        ("Unpin", {"pin_id": "x"}, "tenant"),
        ("Unpin", {"tenant": "acme"}, "pin_id"),
        ("ListTenantPins", {}, "tenant"),
    ],
)
async def test_what_must_be_given(make_rig: MakeRig, method: str, fields: dict[str, str], field: str) -> None:
    rig = await make_rig(OracleService())
    error = await status_of(getattr(rig.stub, method)(getattr(kvmanager_pb2, f"{method}Request")(**fields)))
    assert (error.status, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
    assert "must not be empty" in error.message


# What gateways are told beside tokens


async def test_progress_of_a_long_prompt(make_rig: MakeRig) -> None:
    rig = await make_rig(OracleService(), max_batched_tokens=16, max_sequences=8)
    reply = await rig.gateway.generate(prompt_of(1, 60), max_tokens=3, report_progress=True)
    assert reply.progress == [(16, 60), (32, 60), (48, 60), (60, 60)]
    again = await rig.gateway.generate(prompt_of(1, 60), max_tokens=3)
    assert again.progress == []


async def test_why_a_match_ended(make_rig: MakeRig) -> None:
    rig = await make_rig(OracleService())
    ends = [(await rig.gateway.generate(prompt_of(1, length), max_tokens=1)).usage for length in (13, 13, 23)]
    assert [(usage.cached_tokens, usage.prefix_match_end) for usage in ends] == [
        (0, common_pb2.PREFIX_MATCH_END_NEVER_SEEN),
        (12, common_pb2.PREFIX_MATCH_END_LAST_TOKEN),
        (12, common_pb2.PREFIX_MATCH_END_NEVER_SEEN),
    ]
    private = kvmanager_pb2.ScopeSpan(num_tokens=23, salt=b"mine", owner="default", narrowness=3)
    other = (await rig.gateway.generate(prompt_of(1, 23), max_tokens=1, spans=[private])).usage
    assert (other.cached_tokens, other.prefix_match_end) == (0, common_pb2.PREFIX_MATCH_END_OTHER_SCOPE)
