"""`octavo serve` as a user starts it, and what can be seen of it from outside."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.soak.prompts import NAMESPACE
from octavo.v1 import common_pb2, kvmanager_pb2, kvmanager_pb2_grpc, memory_pb2

MODEL = "smollm2"
_READY = re.compile(r"Octavo serves \S+ on (\S+) and on (\S+)")
_PROCESS = re.compile(r"([\w-]+) serves on (\S+), process (\d+)")
# What the launcher and the services say when something broke.
_TROUBLE = re.compile(r'Traceback|"level": "error"| died \(|did not stop')
# Whose requests all are, where nobody says who is calling.
_TENANT = "default"
_STEP_TOKENS = 128
_START_SECONDS = 300.0
_STOP_SECONDS = 60.0
_CHANNEL_OPTIONS = [("grpc.enable_http_proxy", 0)]


class StackFailed(Exception):
    """The stack did not start or stop as it should."""


@dataclass(frozen=True)
class Place:
    """Where a running stack is.

    Attributes:
        gateway: ``host:port``.
        kvmanager: ``host:port``.
        pids: Process ids by service; empty where they are not known.
    """

    gateway: str
    kvmanager: str
    pids: Mapping[str, int]


@dataclass(frozen=True)
class Settings:
    """Of the stack that is started.

    Attributes:
        executors: How many.
        kv_memory: Key/value memory of each.
        host_memory: Host memory of each, which blocks are swapped out to.
        policy: Who goes first.
    """

    executors: int
    kv_memory: str
    host_memory: str
    policy: str


class ServedStack:
    """A real `octavo serve`."""

    def __init__(self, settings: Settings) -> None:
        threads = max(1, (os.cpu_count() or 1) // settings.executors)
        self._command: Sequence[str] = (
            str(Path(sys.executable).with_name("octavo")),
            # float32 is what the reference computes in.
            *("serve", "--model", MODEL, "--port", "0", "--http-port", "0"),
            *("--dtype", "float32", "--threads", str(threads)),
            *("--num-executors", str(settings.executors), "--policy", settings.policy),
            *("--kv-memory", settings.kv_memory, "--host-memory", settings.host_memory),
            # Small steps, so that a long prompt takes several.
            *("--max-batched-tokens", str(_STEP_TOKENS), "--max-sequences", str(_STEP_TOKENS)),
            *("--shared-namespaces", f"{NAMESPACE}={_TENANT}", "--log-level", "warning"),
        )
        self.lines: list[str] = []
        self._killed: set[str] = set()
        self._pids: Mapping[str, int] = {}
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> Place:
        """Returns when it serves.

        Raises:
            StackFailed: It ended, or took too long.
        """
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise StackFailed(f"{self._command[0]}: {error.strerror}") from error
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(self._read(self._process, ready))
        try:
            gateway = await asyncio.wait_for(ready, _START_SECONDS)
        except asyncio.TimeoutError:
            raise StackFailed(f"does not serve after {_START_SECONDS:.0f} s") from None
        found = [match for match in map(_PROCESS.fullmatch, self.lines) if match]
        places = {match[1]: match[2] for match in found}
        self._pids = {match[1]: int(match[3]) for match in found}
        return Place(gateway, places["kvmanager"], self._pids)

    def kill(self, name: str) -> None:
        """Kills one process, which was never killed before; the launcher starts it again."""
        self._killed.add(name)
        os.kill(self._pids[name], signal.SIGKILL)

    async def stop(self) -> None:
        """Does what Ctrl-C does.

        Raises:
            StackFailed: It did not end, or not well.
        """
        if self._process is None:
            return
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGINT)
        try:
            code = await asyncio.wait_for(self._process.wait(), _STOP_SECONDS)
        except asyncio.TimeoutError:
            self._process.kill()
            raise StackFailed(f"did not stop in {_STOP_SECONDS:.0f} s") from None
        finally:
            self._reader.cancel()
        if code != 0:
            raise StackFailed(f"ended with exit code {code}")

    @property
    def trouble(self) -> list[str]:
        """Lines of its log that tell of a failure, but for those killed here."""
        planned = {f"{name} died (killed by SIGKILL); it is started again" for name in self._killed}
        return [line for line in self.lines if _TROUBLE.search(line) and line not in planned]

    async def _read(self, process: asyncio.subprocess.Process, ready: "asyncio.Future[str]") -> None:
        assert process.stdout is not None
        async for raw in process.stdout:
            self.lines.append(raw.decode("utf-8", "replace").rstrip())
            if (match := _READY.fullmatch(self.lines[-1])) and not ready.done():
                ready.set_result(match[1])
        if not ready.done():
            ready.set_exception(StackFailed(f"did not start: {self.lines[-1] if self.lines else 'it said nothing'}"))


class Inspector:
    """Looks into a running stack."""

    def __init__(self, place: Place) -> None:
        self._kvmanager = grpc.aio.insecure_channel(place.kvmanager, options=_CHANNEL_OPTIONS)
        self._gateway = grpc.aio.insecure_channel(place.gateway, options=_CHANNEL_OPTIONS)

    async def memory_map(self) -> kvmanager_pb2.GetMemoryMapResponse:
        """Every block, and the counters since start."""
        stub = kvmanager_pb2_grpc.KVManagerServiceStub(self._kvmanager)
        request = kvmanager_pb2.GetMemoryMapRequest(include_blocks=True)
        memory: kvmanager_pb2.GetMemoryMapResponse = await stub.GetMemoryMap(request, timeout=30.0)
        return memory

    async def idle_memory_map(self, num_executors: int, patience: float) -> kvmanager_pb2.GetMemoryMapResponse:
        """The memory map once all executors are there and no request is left, or the last one when patience ends."""
        deadline = asyncio.get_running_loop().time() + patience
        while True:
            memory = await self.memory_map()
            if not check_idle(memory, num_executors) or asyncio.get_running_loop().time() > deadline:
                return memory
            await asyncio.sleep(0.1)

    async def unhealthy(self) -> list[str]:
        """Which of gateway and KV manager do not say that they serve, and what they say instead."""
        problems = []
        for name, channel in (("gateway", self._gateway), ("kvmanager", self._kvmanager)):
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30.0)
            if answer.status != health_pb2.HealthCheckResponse.SERVING:
                problems.append(f"{name} is {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}")
        return problems

    async def close(self) -> None:
        """Closes the connections."""
        await self._kvmanager.close(None)
        await self._gateway.close(None)


def check_idle(memory: kvmanager_pb2.GetMemoryMapResponse, num_executors: int) -> list[str]:
    """Whether every executor of a stack without requests is there, and every block nobody's."""
    problems = []
    if len(memory.executors) != num_executors:
        problems.append(f"there are {len(memory.executors)} executors, should be {num_executors}")
    if memory.running_requests or memory.waiting_requests:
        problems.append(f"{memory.running_requests} requests run and {memory.waiting_requests} wait, none should")
    totals = memory_pb2.PoolState(
        num_blocks=sum(executor.device.num_blocks for executor in memory.executors),
        free_blocks=memory.free_blocks,
        cached_blocks=memory.cached_blocks,
        referenced_blocks=memory.referenced_blocks,
    )
    problems += _check_pool(totals, "all executors")
    for executor in memory.executors:
        device = [block for block in executor.blocks if block.tier == common_pb2.TIER_DEVICE]
        host = [block for block in executor.blocks if block.tier == common_pb2.TIER_HOST]
        for tier, pool, blocks in (("device", executor.device, device), ("host", executor.host, host)):
            where = f"{executor.executor}, {tier}"
            problems += _check_pool(pool, where) + _check_blocks(pool, blocks, where)
    for tenant in memory.tenants:
        if tenant.charged_blocks or tenant.pinned_blocks:
            problems.append(f"{tenant.owner} has {tenant.charged_blocks} blocks, {tenant.pinned_blocks} of them pinned")
    return problems


def _check_pool(pool: memory_pb2.PoolState, where: str) -> list[str]:
    states = (pool.free_blocks, pool.cached_blocks, pool.referenced_blocks)
    if pool.referenced_blocks or sum(states) != pool.num_blocks:
        return [f"{where}: of {pool.num_blocks} blocks {states} are free, cached and referenced"]
    return []


def _check_blocks(pool: memory_pb2.PoolState, blocks: Sequence[memory_pb2.Block], where: str) -> list[str]:
    """Each block by itself, against the totals."""
    problems = []
    referenced = [block.block_id for block in blocks if block.reference_count]
    if referenced:
        problems.append(f"{where}: blocks {referenced} have references")
    num_cached = sum(block.cached for block in blocks)
    if (len(blocks), num_cached) != (pool.num_blocks, pool.cached_blocks):
        problems.append(f"{where}: {len(blocks)} blocks are listed, {num_cached} of them cached")
    return problems
