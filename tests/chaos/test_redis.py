"""Redis is full, and then read-only, under load, and a gateway is killed meanwhile: streams go on without a log."""

from __future__ import annotations

import asyncio

import pytest

from tests.chaos.conftest import MakeTrial
from tests.services.e2e.redis_server import RedisServer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

AWAY_SECONDS = 5.0
"""Longer than any lease."""

BACK_SECONDS = 2.5


def fill(redis: RedisServer) -> None:
    redis.client.config_set("maxmemory", "1")


def empty(redis: RedisServer) -> None:
    redis.client.config_set("maxmemory", "0")


def take_writing_away(redis: RedisServer) -> None:
    redis.client.replicaof("127.0.0.1", 1)  # type: ignore[no-untyped-call]


def give_writing_back(redis: RedisServer) -> None:
    redis.client.replicaof("NO", "ONE")  # type: ignore[no-untyped-call]


async def test_redis_takes_nothing(make_trial: MakeTrial) -> None:
    async with make_trial() as trial:
        for begin, end in ((fill, empty), (take_writing_away, give_writing_back)):
            await asyncio.sleep(BACK_SECONDS)
            begin(trial.cluster.redis)
            await asyncio.sleep(AWAY_SECONDS / 2)
            trial.rng.choice(trial.cluster.members["gateway"]).kill()
            await asyncio.sleep(AWAY_SECONDS / 2)
            end(trial.cluster.redis)
        await asyncio.sleep(BACK_SECONDS)
