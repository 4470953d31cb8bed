"""How the stack is, as the operator sees it and as a tenant sees it."""

from __future__ import annotations

import asyncio
import secrets

import grpc
import pytest

from octavo.v1 import memory_pb2, monitoring_pb2
from services.rpc.status import RpcError
from tests.services.kvmanager.conftest import MakeRig
from tests.services.kvmanager.oracle_service import MODEL, OracleService
from tests.services.kvmanager.test_looking_in import prompt_of
from tests.services.monitoring.conftest import ACME, BETA, OPERATOR, MakeSight, span, without_time


async def test_the_operator_sees_all_and_a_tenant_its_share(make_rig: MakeRig, make_sight: MakeSight) -> None:
    one = OracleService(num_host_blocks=10)
    rig = await make_rig(one, tenants="acme:reserved=10,max=50,weight=2", max_batched_tokens=60, max_sequences=20)
    sight = await make_sight(rig)
    one.hold()
    await rig.gateway.submit(prompt_of(1, 12), max_tokens=1, tenant="acme", spans=[span(12, "acme")])
    await rig.gateway.submit(prompt_of(2, 20), max_tokens=1, tenant="beta", spans=[span(20, "beta")])
    seen = await sight.status_when(OPERATOR, lambda status: status.running_requests == 2)
    assert seen.ready
    assert seen.model == MODEL
    assert seen.bytes_per_block == 1000
    assert seen.batch_prefill_tokens
    (executor,) = seen.executors
    assert executor.device == memory_pb2.PoolState(num_blocks=100, free_blocks=92, referenced_blocks=8)
    assert seen.counters.prompt_tokens == 32
    owners = {tenant.memory.owner: tenant for tenant in seen.tenants}
    assert owners.keys() == {"acme", "beta"}
    assert (owners["acme"].memory.charged_blocks, owners["acme"].memory.reserved_blocks) == (3, 10)
    assert (owners["beta"].running_requests, owners["beta"].memory.charged_blocks) == (1, 5)

    mine = await sight.status(ACME)
    assert (mine.running_requests, mine.ready, mine.model) == (1, True, MODEL)
    (executor,) = mine.executors
    assert executor.device == memory_pb2.PoolState(num_blocks=100, free_blocks=97, referenced_blocks=3)
    assert executor.host == memory_pb2.PoolState(num_blocks=10, free_blocks=10)
    (tenant,) = mine.tenants
    assert (tenant.memory.owner, tenant.memory.charged_blocks, tenant.memory.max_blocks) == ("acme", 3, 50)
    one.go_on()
    await rig.when_idle()
    idle = await sight.status_when(BETA, lambda status: not status.running_requests)
    assert (idle.batch_sequences, idle.batch_prefill_tokens, idle.batch_decode_tokens) == (0, 0, 0)
    assert idle.executors[0].device == memory_pb2.PoolState(num_blocks=100, free_blocks=95, cached_blocks=5)


async def test_a_batch_is_told_by_tenant(make_rig: MakeRig, make_sight: MakeSight) -> None:
    one = OracleService()
    rig = await make_rig(one)
    sight = await make_sight(rig)
    reply = await rig.gateway.submit(prompt_of(1, 12), max_tokens=190, n=2, tenant="acme", spans=[span(12, "acme")])
    await rig.gateway.wait_for_tokens(reply, 2)
    one.hold()
    seen = await sight.status_when(OPERATOR, lambda status: status.batch_sequences == 2)
    assert (seen.batch_prefill_tokens, seen.batch_decode_tokens) == (0, 2)
    mine, theirs = await sight.status(ACME), await sight.status(BETA)
    for field in ("batch_sequences", "batch_prefill_tokens", "batch_decode_tokens"):
        assert (
            getattr(mine, field) + getattr(theirs, field) == getattr(seen, field) == getattr(seen.executors[0], field)
        )
    one.go_on()
    await rig.gateway.finished(reply)


async def test_what_others_do_changes_nothing_for_a_tenant(make_rig: MakeRig, make_sight: MakeSight) -> None:
    one = OracleService(num_host_blocks=10)
    rig = await make_rig(one)
    sight = await make_sight(rig)
    before = without_time(await sight.status(ACME))
    name = f"beta-{secrets.token_hex(8)}"
    one.hold()
    await rig.gateway.submit(prompt_of(2, 20), max_tokens=9, n=2, tenant=name, spans=[span(20, name)])
    await rig.eventually(lambda: rig.manager.counters.steps >= 1, "it runs")
    await sight.status_when(OPERATOR, lambda status: status.running_requests == 1)
    assert without_time(await sight.status(ACME)) == before
    one.go_on()
    await rig.when_idle()
    await sight.status_when(OPERATOR, lambda status: status.counters.generated_tokens == 18)
    last = await sight.first_status(ACME)
    assert without_time(last.status) == before
    assert name.encode() not in last.SerializeToString()


async def test_history_comes_first_and_only_once(make_rig: MakeRig, make_sight: MakeSight) -> None:
    sight = await make_sight(await make_rig(OracleService()))
    while len(sight.monitoring._samples.history) < 2:
        await asyncio.sleep(0.02)
    request = monitoring_pb2.WatchStatusRequest()
    request.interval.FromMilliseconds(100)
    responses = []
    async for response in sight.monitoring.watch_status(request, OPERATOR):
        responses.append(response)
        if len(responses) == 3:
            break
    times = [status.time.ToNanoseconds() for status in [*responses[0].history, *(each.status for each in responses)]]
    assert times == sorted(times)
    assert responses[0].history
    assert not responses[1].history
    assert not any(status.HasField("model") or status.tenants for status in responses[0].history)
    assert all(len(status.executors) == 1 for status in responses[0].history)


async def test_executors_of_several_groups_have_names_of_their_own(make_rig: MakeRig, make_sight: MakeSight) -> None:
    rigs = [await make_rig(OracleService()), await make_rig(OracleService(), OracleService())]
    sight = await make_sight(*rigs)
    for rig in rigs:
        await rig.gateway.generate(prompt_of(1, 12), max_tokens=2, tenant="acme", spans=[span(12, "acme")])
    seen = await sight.status_when(OPERATOR, lambda status: status.counters.generated_tokens == 4)
    named = {f"1/{each.address}" for each in rigs[0].executors} | {f"2/{each.address}" for each in rigs[1].executors}
    assert {executor.executor for executor in seen.executors} == named
    (tenant,) = (await sight.status(ACME)).tenants
    assert tenant.memory.cached_blocks == 6


async def test_without_anybody_to_ask_it_is_not_ready(make_rig: MakeRig, make_sight: MakeSight) -> None:
    rig = await make_rig(OracleService())
    sight = await make_sight(rig)
    assert (await sight.status(OPERATOR)).ready
    await rig.executors[0].kill()
    await sight.status_when(OPERATOR, lambda status: not status.executors)
    await rig.executors[0].start()
    await sight.status_when(OPERATOR, lambda status: status.ready and len(status.executors) == 1)


async def test_intervals_have_limits(make_rig: MakeRig, make_sight: MakeSight) -> None:
    sight = await make_sight(await make_rig(OracleService()))
    for milliseconds in (0, 99, 3_600_001, -1000):
        status, blocks = monitoring_pb2.WatchStatusRequest(), monitoring_pb2.WatchBlocksRequest()
        for request, watch in ((status, sight.monitoring.watch_status), (blocks, sight.monitoring.watch_blocks)):
            request.interval.FromMilliseconds(milliseconds)
            with pytest.raises(RpcError) as refused:
                await anext(watch(request, OPERATOR))
            assert (refused.value.code, refused.value.field) == (grpc.StatusCode.INVALID_ARGUMENT, "interval")
