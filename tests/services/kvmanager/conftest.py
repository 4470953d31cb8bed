"""A KV manager with gRPC all around it in this process, in front of oracle executors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest

from octavo.v1 import kvmanager_pb2, kvmanager_pb2_grpc
from services.config import KVManagerConfig
from services.kvmanager.server import KVManagerService
from tests.ports import free_port
from tests.services.kvmanager.inner_gateway import PATIENCE, InnerGateway
from tests.services.kvmanager.oracle_service import OracleService


class Rig:
    """A KV manager and who is around it."""

    def __init__(self, executors: list[OracleService], settings: dict[str, Any]) -> None:
        self.executors = executors
        self.config = KVManagerConfig(
            port=free_port(),
            drain_seconds=0.0,
            **{
                "executors": ",".join(executor.address for executor in executors),
                "executor_patience": PATIENCE,  # executors that are held are not lost
                **settings,
            },
        )
        self.service = KVManagerService(self.config)
        self.channel = grpc.aio.insecure_channel(self.config.address)
        self.stub = kvmanager_pb2_grpc.KVManagerServiceStub(self.channel)

    async def start(self) -> None:
        """Returns when all executors are attached."""
        for executor in self.executors:
            await executor.start()
        await self.service.start()
        self._running = asyncio.create_task(self.service.run())
        await self.eventually(self.leads, "it leads")
        self.gateway = InnerGateway(self.channel)
        await self.eventually(self.all_attached, "all executors are attached")

    @property
    def manager(self) -> Any:
        assert self.service.term is not None
        return self.service.term.driver.manager

    def leads(self) -> bool:
        return self.service.term is not None

    def all_attached(self) -> bool:
        return set(self.manager.replicas) == {executor.address for executor in self.executors}

    async def eventually(self, condition: Callable[[], bool], what: str) -> None:
        end = asyncio.get_running_loop().time() + PATIENCE
        while not condition():
            assert not self._running.done() or self._running.result(), "the service has ended"
            assert asyncio.get_running_loop().time() < end, f"never: {what}"
            await asyncio.sleep(0.005)

    async def memory_map(self, include_blocks: bool = False) -> kvmanager_pb2.GetMemoryMapResponse:
        return await self.stub.GetMemoryMap(kvmanager_pb2.GetMemoryMapRequest(include_blocks=include_blocks))

    async def when_idle(self) -> None:
        """Nothing runs, and nothing is wrong."""
        await self.eventually(lambda: self.manager.idle, "nothing runs any more")
        self.manager.check_integrity()

    async def stop(self) -> None:
        await self.gateway.close()
        await self.service.stop()
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        await self.channel.close()
        for executor in self.executors:
            executor.go_on()
            await executor.kill()
        assert [problem for executor in self.executors for problem in executor.problems] == []


MakeRig = Callable[..., Awaitable[Rig]]


@pytest.fixture
async def make_rig() -> AsyncIterator[MakeRig]:
    """Starts a KV manager with these executors and settings."""
    async with AsyncExitStack() as stack:

        async def make(*executors: OracleService, **settings: Any) -> Rig:
            rig = Rig(list(executors), settings)
            stack.push_async_callback(rig.stop)
            await rig.start()
            return rig

        yield make
