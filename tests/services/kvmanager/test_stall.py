"""Work that does not go on, and health that says so."""

from __future__ import annotations

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.kvmanager.stall import Stall
from tests.oracle import expected_output
from tests.services.kvmanager.conftest import MakeRig, Rig
from tests.services.kvmanager.oracle_service import OracleService

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def test_only_work_that_stands_still_is_a_stall() -> None:
    stall = Stall(0.5)
    assert not any(stall.look(number, True, 1.0) for number in range(10)), "it goes on"
    assert not any(stall.look(9, False, 1.0) for _ in range(10)), "there is nothing to do"
    assert [stall.look(9, True, 1.0) for _ in range(4)] == [False, False, True, True]
    assert not stall.look(10, True, 1.0)
    assert [stall.look(10, True, 0.7) for _ in range(2)] == [False, True]
    assert not stall.look(10, False, 0.7)


async def wait_for_health(rig: Rig, status: int) -> None:
    stub = health_pb2_grpc.HealthStub(rig.channel)
    async for answer in stub.Watch(health_pb2.HealthCheckRequest()):
        if answer.status == status:
            return


@pytest.mark.timeout(60)
async def test_a_kv_manager_whose_steps_do_not_go_on_says_that_it_does_not_serve(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = OracleService()
    rig = await make_rig(one, executor_patience=0.2)
    await rig.gateway.generate([1, 2, 3], seed=1, max_tokens=3)
    await wait_for_health(rig, SERVING)
    with monkeypatch.context() as broken:
        broken.setattr(rig.manager, "schedule", lambda executor, now: None)
        reply = await rig.gateway.submit([4, 5, 6], seed=2, max_tokens=10)
        await wait_for_health(rig, NOT_SERVING)
    assert "there is work, and no step goes on" in caplog.messages
    await rig.gateway.generate([7, 8, 9], seed=3, max_tokens=3)
    await rig.gateway.finished(reply)
    assert reply.sequences[0] == expected_output([4, 5, 6], 2, 0, 10, frozenset())
    await wait_for_health(rig, SERVING)
