"""Octavo as several processes of each kind with a Redis, and a supervisor that starts again what has ended."""

from __future__ import annotations

import asyncio
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import grpc

from octavo.v1 import kvmanager_pb2, kvmanager_pb2_grpc
from tests.services.e2e.processes import CHANNEL_OPTIONS, Process, Processes, Server
from tests.services.e2e.redis_server import RedisServer
from tests.services.e2e.stack import EXECUTOR_SETTINGS, MODEL_NAME
from tests.tcp_proxy import ThreadedTcpProxy

Service = Literal["gateway", "kvmanager", "executor", "redis"]
SERVICES: tuple[Service, ...] = ("gateway", "kvmanager", "executor", "redis")

START_SECONDS = 90.0
DRAIN_SECONDS = 4.0
"""How long a process that is told to end may let its requests run."""

_WATCH_SECONDS = 0.05
_EVENTS = ("KV manager lost", "executor away", "state store is away; serving continues", "this KV manager leads")
_ENDED_BY_A_FAULT = (0, -signal.SIGKILL, -signal.SIGTERM)


@dataclass
class Proxies:
    """Between the processes, by whom they lead to."""

    gateway: list[ThreadedTcpProxy]
    kvmanager: list[ThreadedTcpProxy]
    executor: list[ThreadedTcpProxy]
    redis: list[ThreadedTcpProxy]

    def of(self, service: Service) -> list[ThreadedTcpProxy]:
        proxies: list[ThreadedTcpProxy] = getattr(self, service)
        return proxies

    def close(self) -> None:
        for service in SERVICES:
            for proxy in self.of(service):
                proxy.close()


class Cluster:
    """Two gateways, a leading KV manager and its standby, two executors, a Redis. Nothing is started yet.

    Args:
        proxied: Whether every connection goes through a proxy.

    Attributes:
        gateways: Addresses as clients use them.
        redis: The state store.
        exit_codes: Of the processes that the supervisor has started again, by service.
    """

    def __init__(
        self, processes: Processes, model: Path, redis_program: str, folder: Path, *, proxied: bool = False
    ) -> None:
        self.redis = RedisServer(processes, redis_program, folder)
        self.exit_codes: dict[Service, list[int | None]] = {service: [] for service in SERVICES}
        self.proxies = Proxies([], [], [], [])
        self._proxied = proxied
        state = self.redis.url.replace(self.redis.address, self._reached_at("redis", self.redis.address))
        drain = {"drain_seconds": DRAIN_SECONDS}
        executors = [
            processes.octavo("executor", model=model, model_name=MODEL_NAME, **EXECUTOR_SETTINGS | drain)
            for _ in range(2)
        ]
        self._executor_addresses = {self._reached_at("executor", each.address) for each in executors}
        settings = {"executors": ",".join(sorted(self._executor_addresses)), "state": state, **drain}
        self._kvmanagers = [processes.octavo("kvmanager", **settings) for _ in range(2)]
        kvmanagers = ",".join(self._reached_at("kvmanager", each.address) for each in self._kvmanagers)
        where = {"model": model, "model_name": MODEL_NAME, "kvmanager": kvmanagers, "state": state}
        gateways = [processes.octavo("gateway", **where, **drain) for _ in range(2)]
        self.gateways = [self._reached_at("gateway", each.address) for each in gateways]
        self.members: dict[Service, list[Process]] = {
            "gateway": [*gateways],
            "kvmanager": [*self._kvmanagers],
            "executor": [*executors],
            "redis": [self.redis.process],
        }

    def _reached_at(self, service: Service, address: str) -> str:
        if not self._proxied:
            return address
        proxy = ThreadedTcpProxy(address)
        self.proxies.of(service).append(proxy)
        return proxy.address

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """All serve, and are started again whenever they have ended."""
        try:
            await asyncio.to_thread(self.redis.start)
            for process in self._all():
                if not process.running:
                    process.start()
            await self.serving()
            supervisor = asyncio.create_task(self._supervise())
            try:
                yield
            finally:
                supervisor.cancel()
                await asyncio.gather(supervisor, return_exceptions=True)
        finally:
            for process in self._all():
                process.kill()
            self.redis.client.close()
            self.proxies.close()

    async def serving(self) -> None:
        """Returns when every gateway serves and the leader has both executors."""
        for gateway in self.members["gateway"]:
            assert isinstance(gateway, Server)
            await asyncio.to_thread(gateway.wait_until_serving)
        await self._eventually(self._has_all_executors, "the leader has both executors")

    def _all(self) -> Iterator[Process]:
        for service in SERVICES:
            yield from self.members[service]

    async def _supervise(self) -> None:
        while True:
            for service in SERVICES:
                for process in self.members[service]:
                    if not process.running:
                        self.exit_codes[service].append(process.exit_code)
                        process.start()
            await asyncio.sleep(_WATCH_SECONDS)

    def breakdowns(self) -> list[str]:
        """What processes said that ended by themselves."""
        said = [line for process in self._all() for line in process.output().splitlines() if '"critical"' in line]
        codes = {(service, code) for service in SERVICES for code in self.exit_codes[service]}
        # SIGTERM ends a process at once that has not come to where it takes it for a request.
        wrong = [f"a {service} ended with {code}" for service, code in codes if code not in _ENDED_BY_A_FAULT]
        return said + wrong

    def events(self) -> Counter[str]:
        """How often processes noticed the loss of another, or took its place."""
        said = Counter(re.findall(r'"event": "([^"]*)"', "\n".join(process.output() for process in self._all())))
        return Counter({event: said[event] for event in _EVENTS})

    # Memory

    async def idle(self) -> None:
        """Returns when no request is left and all blocks are free or cached.

        Raises:
            AssertionError: It never came to that.
        """
        await self._eventually(self._is_idle, "no request and no referenced block is left")

    async def _is_idle(self) -> bool:
        memory = await self.memory()
        if memory is None or not await self._has_all_executors():
            return False
        assert memory.free_blocks + memory.cached_blocks + memory.referenced_blocks == memory.num_blocks
        blocks = [block for executor in memory.executors for block in executor.blocks]
        assert blocks
        in_use = [block for block in blocks if block.reference_count]
        return not (in_use or memory.running_requests or memory.waiting_requests or memory.swapped_requests)

    async def _has_all_executors(self) -> bool:
        memory = await self.memory()
        return memory is not None and {each.executor for each in memory.executors} == self._executor_addresses

    async def memory(self) -> kvmanager_pb2.GetMemoryMapResponse | None:
        """The leader's memory map: of the KV manager that has executors. None where there is none."""
        for kvmanager in self._kvmanagers:
            async with grpc.aio.insecure_channel(kvmanager.address, options=CHANNEL_OPTIONS) as channel:
                stub = kvmanager_pb2_grpc.KVManagerServiceStub(channel)
                request = kvmanager_pb2.GetMemoryMapRequest(include_blocks=True)
                try:
                    memory: kvmanager_pb2.GetMemoryMapResponse = await stub.GetMemoryMap(request, timeout=5.0)
                except grpc.RpcError:
                    continue
            if memory.executors:
                return memory
        return None

    async def _eventually(self, look: Callable[[], Awaitable[bool]], what: str) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + START_SECONDS
        while not await look():
            assert loop.time() < end, f"never within {START_SECONDS:g} s: {what}; last: {await self.memory()}"
            await asyncio.sleep(0.1)
