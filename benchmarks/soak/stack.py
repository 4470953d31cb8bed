"""`octavo serve` as a user starts it, and what can be seen of it from outside."""

import asyncio
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo.v1 import kvmanager_pb2, kvmanager_pb2_grpc

MODEL = "smollm2"
_READY = re.compile(r"Octavo serves \S+ on (\S+)")
_PROCESS = re.compile(r"(\w+) serves on (\S+), process (\d+)")
# What the launcher and the services say when something broke.
_TROUBLE = re.compile(r'Traceback|"level": "error"| died \(|did not stop')
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


class ServedStack:
    """A real `octavo serve`."""

    def __init__(self, kv_memory: str) -> None:
        # float32 is what the reference computes in.
        self._command: Sequence[str] = (
            str(Path(sys.executable).with_name("octavo")),
            *("serve", "--model", MODEL, "--port", "0", "--dtype", "float32"),
            *("--kv-memory", kv_memory, "--log-level", "warning"),
        )
        self.lines: list[str] = []
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
        return Place(gateway, places["kvmanager"], {match[1]: int(match[3]) for match in found})

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
        """Lines of its log that tell of a failure."""
        return [line for line in self.lines if _TROUBLE.search(line)]

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

    async def idle_memory_map(self, patience: float) -> kvmanager_pb2.GetMemoryMapResponse:
        """The memory map once no request is left, or the last one when patience ends."""
        deadline = asyncio.get_running_loop().time() + patience
        while True:
            memory = await self.memory_map()
            busy = memory.running_requests or memory.waiting_requests or memory.referenced_blocks
            if not busy or asyncio.get_running_loop().time() > deadline:
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


def check_idle(memory: kvmanager_pb2.GetMemoryMapResponse) -> list[str]:
    """Whether every block of a stack without requests is there and nobody's."""
    problems = []
    if memory.running_requests or memory.waiting_requests:
        problems.append(f"{memory.running_requests} requests run and {memory.waiting_requests} wait, none should")
    states = (memory.free_blocks, memory.cached_blocks, memory.referenced_blocks)
    if memory.referenced_blocks or sum(states) != memory.num_blocks:
        problems.append(f"of {memory.num_blocks} blocks {states} are free, cached and referenced")
    # Each block by itself, against the totals.
    referenced = [index for index, block in enumerate(memory.blocks) if block.reference_count]
    if referenced:
        problems.append(f"blocks {referenced} have references")
    num_cached = sum(block.cached for block in memory.blocks)
    if (len(memory.blocks), num_cached) != (memory.num_blocks, memory.cached_blocks):
        problems.append(f"{len(memory.blocks)} blocks are listed, {num_cached} of them cached")
    return problems
