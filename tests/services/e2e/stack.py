"""The services as processes, and what their inner interfaces say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from octavo.v1 import executor_pb2, executor_pb2_grpc, kvmanager_pb2, kvmanager_pb2_grpc, memory_pb2
from tests.services.e2e.calls import Caller
from tests.services.e2e.processes import CHANNEL_OPTIONS, PATIENCE, Processes, Server, eventually

MODEL_NAME = "tiny"
SETTINGS = {"drain_seconds": 20}
EXECUTOR_SETTINGS = {"dtype": "float32", "kv_memory": "8MiB", "threads": 1, "device": "cpu", **SETTINGS}


class Stack:
    """A gateway, a KV manager and one or more executors on loopback.

    Args:
        executor: Another stack may have had it before.
        replicas: More executors.
        environment: Of gateway and KV manager.
        gateway: Settings of the gateway.
        kvmanager: Settings of the KV manager.
    """

    def __init__(
        self,
        processes: Processes,
        model: Path,
        executor: Server,
        environment: dict[str, str] | None = None,
        gateway: dict[str, Any] | None = None,
        kvmanager: dict[str, Any] | None = None,
        replicas: Sequence[Server] = (),
    ) -> None:
        self._processes = processes
        self._model = model
        self._environment = environment
        self._gateway_settings = SETTINGS | (gateway or {})
        self.executor = executor
        self.executors = [executor, *replicas]
        settings = SETTINGS | {"executors": ",".join(each.address for each in self.executors)}
        # Executors that a test holds still are not lost, unless it says so.
        settings |= {"executor_patience": PATIENCE} | (kvmanager or {})
        self.kvmanager = processes.octavo("kvmanager", environment, **settings)
        self.gateway = self.another_gateway()
        self.caller = Caller(self.gateway.address)
        self._inner = grpc.insecure_channel(self.kvmanager.address, options=CHANNEL_OPTIONS)
        self.inner = kvmanager_pb2_grpc.KVManagerServiceStub(self._inner)

    def another_gateway(self) -> Server:
        """One more in front of the same KV manager. It is not started yet."""
        where = {"model": self._model, "model_name": MODEL_NAME, "kvmanager": self.kvmanager.address}
        return self._processes.octavo("gateway", self._environment, **where, **self._gateway_settings)

    def start(self) -> None:
        """Starts what does not run yet, and returns when all serve."""
        for server in (*self.executors, self.kvmanager, self.gateway):
            if not server.running:
                server.start()
        self.gateway.wait_until_serving()
        self.wait_for_executors(*self.executors)

    def memory_map(self, include_blocks: bool = False) -> kvmanager_pb2.GetMemoryMapResponse:
        request = kvmanager_pb2.GetMemoryMapRequest(include_blocks=include_blocks)
        return self.inner.GetMemoryMap(request, timeout=10)

    def memory_by_executor(self) -> dict[str, memory_pb2.ExecutorMemory]:
        return {memory.executor: memory for memory in self.memory_map().executors}

    def wait_for_executors(self, *executors: Server) -> None:
        """Returns when these are attached, and no others."""
        wanted = {executor.address for executor in executors}
        eventually(lambda: set(self.memory_by_executor()) == wanted, what=f"executors {wanted}")

    def wait_until_idle(self, seconds: float = 10.0) -> None:
        """Returns when no request is there and no block is referenced."""

        def idle() -> bool:
            state = self.memory_map()
            assert state.free_blocks + state.cached_blocks + state.referenced_blocks == state.num_blocks
            return not (state.referenced_blocks or state.running_requests or state.waiting_requests)

        eventually(idle, seconds, "nothing left behind in the KV manager")

    def wait_for_requests(self, *, running: int, waiting: int = 0) -> None:
        """Returns when so many run and so many wait."""

        def there() -> bool:
            state = self.memory_map()
            return (state.running_requests, state.waiting_requests) == (running, waiting)

        eventually(there, what=f"{running} running and {waiting} waiting requests")

    def wait_for_requests_in_total(self, count: int) -> None:
        """Returns when so many are there, whether they run or wait."""

        def there() -> bool:
            state = self.memory_map()
            return state.running_requests + state.waiting_requests == count

        eventually(there, what=f"{count} requests")

    def epoch(self) -> int:
        """The highest that the executor has seen."""
        return describe(self.executor.address).epoch

    def close(self) -> None:
        """Ends gateway and KV manager; the executors may go on with another stack."""
        self.caller.close()
        self._inner.close()
        self.gateway.kill()
        self.kvmanager.kill()


def make_executor(
    processes: Processes, model: Path, environment: dict[str, str] | None = None, **settings: Any
) -> Server:
    """An executor of the model. It is not started yet."""
    settings = {"model": model, "model_name": MODEL_NAME, **EXECUTOR_SETTINGS, **settings}
    return processes.octavo("executor", environment, **settings)


def memory_of(address: str, include_blocks: bool = False) -> kvmanager_pb2.GetMemoryMapResponse:
    """A KV manager's memory map."""
    with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        stub = kvmanager_pb2_grpc.KVManagerServiceStub(channel)
        return stub.GetMemoryMap(kvmanager_pb2.GetMemoryMapRequest(include_blocks=include_blocks), timeout=10)


def describe(address: str) -> executor_pb2.DescribeResponse:
    """What an executor says of itself."""
    with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        stub = executor_pb2_grpc.ExecutorServiceStub(channel)
        return stub.Describe(executor_pb2.DescribeRequest(), timeout=10)
