"""Requests that are here and that were, and their lives, as the operator sees them and as a tenant sees them."""

from __future__ import annotations

import grpc
import pytest

from octavo.v1 import monitoring_pb2
from octavo.v1.monitoring_pb2 import ExplainRequestRequest, ListRequestsRequest
from services.gateway.viewers import Viewer
from services.rpc.columns import unpack_int32
from services.rpc.status import RpcError
from tests.services.kvmanager.conftest import MakeRig
from tests.services.kvmanager.oracle_service import OracleService
from tests.services.kvmanager.test_looking_in import prompt_of
from tests.services.monitoring.conftest import ACME, BETA, OPERATOR, MakeSight, Sight, span


async def listed(sight: Sight, viewer: Viewer, num_ended: int = 0, blocks: bool = False) -> list[str]:
    return [view.request_id for view in await views(sight, viewer, num_ended, blocks)]


async def views(
    sight: Sight, viewer: Viewer, num_ended: int = 0, blocks: bool = False
) -> list[monitoring_pb2.RequestView]:
    request = ListRequestsRequest(num_ended=num_ended, include_blocks=blocks)
    return list((await sight.monitoring.list_requests(request, viewer)).requests)


async def explained(sight: Sight, viewer: Viewer, request_id: str) -> monitoring_pb2.Timeline:
    request = ExplainRequestRequest(request_id=request_id)
    return (await sight.monitoring.explain(request, viewer)).timeline


async def test_requests_in_order_of_arrival(make_rig: MakeRig, make_sight: MakeSight) -> None:
    one = OracleService()
    rig = await make_rig(one)
    sight = await make_sight(rig)
    for number, tenant in enumerate(("acme", "beta", "acme")):
        await rig.gateway.generate(prompt_of(number, 9), max_tokens=2, tenant=tenant, request_id=f"old{number}")
    one.hold()
    steps = rig.manager.counters.steps
    await rig.gateway.submit(
        prompt_of(5, 10), max_tokens=300, n=1, tenant="acme", request_id="large", spans=[span(10, "acme")]
    )
    await rig.eventually(lambda: rig.manager.counters.steps > steps, "it runs")
    await rig.gateway.submit(prompt_of(6, 350), max_tokens=9, tenant="beta", request_id="waits")
    await rig.eventually(lambda: len(rig.manager.requests) == 2, "it is here")
    assert await listed(sight, OPERATOR) == ["large", "waits"]
    assert await listed(sight, OPERATOR, 2) == ["old1", "old2", "large", "waits"]
    assert await listed(sight, OPERATOR, 1000) == ["old0", "old1", "old2", "large", "waits"]
    assert await listed(sight, ACME, 1) == ["old2", "large"]
    assert await listed(sight, BETA, 5) == ["old1", "waits"]
    (large,) = await views(sight, ACME, blocks=True)
    assert large.state == monitoring_pb2.REQUEST_STATE_RUNNING
    assert large.executor == one.address
    assert (large.prompt_tokens, large.computed_tokens, large.max_tokens) == (10, 10, 300)
    (sequence,) = large.sequences
    table = [block.block_id for block in rig.manager.requests[1, 4].sequences[0].table]
    assert unpack_int32(sequence.block_ids) == table
    assert not (await views(sight, ACME))[0].sequences[0].block_ids
    one.go_on()
    await rig.when_idle()
    ended = await views(sight, BETA, 1)
    assert (ended[0].request_id, ended[0].reason, ended[0].output_tokens) == ("waits", "length", 9)


async def test_a_life_is_told_to_whom_it_belongs(make_rig: MakeRig, make_sight: MakeSight) -> None:
    rig = await make_rig(OracleService(), OracleService())
    sight = await make_sight(rig)
    await rig.gateway.generate(prompt_of(1, 9), max_tokens=2, tenant="acme", request_id="mine")
    for viewer in (OPERATOR, ACME):
        told = await explained(sight, viewer, "mine")
        assert told.request.request_id == "mine"
        assert told.decisions[0].kind == monitoring_pb2.DECISION_KIND_QUEUED
        assert told.decisions[-1].kind == monitoring_pb2.DECISION_KIND_FINISHED
    for viewer, name in ((BETA, "mine"), (ACME, "none"), (OPERATOR, "none")):
        with pytest.raises(RpcError) as refused:
            await explained(sight, viewer, name)
        assert (refused.value.code, refused.value.field) == (grpc.StatusCode.NOT_FOUND, "request_id")
    await rig.gateway.generate(prompt_of(2, 9), max_tokens=3, tenant="beta", request_id="mine")
    assert (await explained(sight, ACME, "mine")).request.tenant == "acme"
    assert (await explained(sight, BETA, "mine")).request.output_tokens == 3
    assert (await explained(sight, OPERATOR, "mine")).request.tenant == "beta"


async def test_requests_of_several_groups(make_rig: MakeRig, make_sight: MakeSight) -> None:
    rigs = [await make_rig(OracleService()), await make_rig(OracleService())]
    sight = await make_sight(*rigs)
    for number in range(4):
        rig = rigs[number % 2]
        await rig.gateway.generate(prompt_of(number, 9), max_tokens=2, tenant="acme", request_id=f"r{number}")
    assert await listed(sight, ACME, 3) == ["r1", "r2", "r3"]
    assert [view.executor.partition("/")[0] for view in await views(sight, ACME, 4)] == ["1", "2", "1", "2"]
    told = await explained(sight, ACME, "r1")
    assert told.request.executor == f"2/{rigs[1].executors[0].address}"
    assert {each.executor for each in told.decisions} == {"", told.request.executor}
    await rigs[0].gateway.generate(prompt_of(1, 9), max_tokens=2, tenant="acme", request_id="r1")
    assert (await explained(sight, ACME, "r1")).request.executor.startswith("1/")


async def test_a_kv_manager_that_is_away(make_rig: MakeRig, make_sight: MakeSight) -> None:
    rigs = [await make_rig(OracleService()), await make_rig(OracleService())]
    sight = await make_sight(*rigs)
    await rigs[0].gateway.generate(prompt_of(1, 9), max_tokens=2, tenant="acme", request_id="mine")
    await rigs[1].service.stop()
    await rigs[0].eventually(lambda: not sight.backends.links[1].open, "it is gone")
    assert await listed(sight, ACME, 1) == ["mine"]
    await rigs[0].service.stop()
    await rigs[1].eventually(lambda: not sight.backends.links[0].open, "the other is gone, too")
    with pytest.raises(RpcError) as refused:
        await listed(sight, ACME)
    assert refused.value.code is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("num_ended", [-1, 1001])
async def test_numbers_have_limits(make_rig: MakeRig, make_sight: MakeSight, num_ended: int) -> None:
    sight = await make_sight(await make_rig(OracleService()))
    with pytest.raises(RpcError) as refused:
        await listed(sight, OPERATOR, num_ended)
    assert (refused.value.code, refused.value.field) == (grpc.StatusCode.INVALID_ARGUMENT, "num_ended")
    with pytest.raises(RpcError) as refused:
        await explained(sight, OPERATOR, "")
    assert refused.value.field == "request_id"
