"""`octavo serve` with several executors, as a user starts it."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from octavo.v1 import kvmanager_pb2, kvmanager_pb2_grpc
from tests.services.e2e.calls import Caller
from tests.services.e2e.processes import CHANNEL_OPTIONS, Process, Processes, eventually
from tests.services.e2e.stack import EXECUTOR_SETTINGS
from tests.services.e2e.tiny_model import Reference

SETTINGS = {
    **EXECUTOR_SETTINGS,
    "port": 0,
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
        self.gateway = self._said(r"Octavo serves \S+ on (\S+)")[0]
        self.kvmanager = self._said(r"kvmanager serves on (\S+),")[0]
        self.executors = [self._said(rf"executor-{number} serves on (\S+), process (\d+)") for number in (1, 2)]

    def _said(self, pattern: str) -> tuple[str, ...]:
        def look() -> re.Match[str] | None:
            assert self.launcher.running, self.launcher.output()
            return re.search(pattern, self.launcher.output())

        match = eventually(look, what=pattern)
        assert match is not None
        return match.groups()


@pytest.fixture
def served(processes: Processes, model: Path) -> Iterator[Served]:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
    command = [sys.executable, "-m", "services.cli.app", "--stop-with-stdin", "serve", f"--model={model}", *flags]
    launcher = processes.other("serve", command)
    launcher.start()
    yield Served(launcher)
    launcher.kill()


def test_an_executor_that_dies_comes_back_and_nobody_notices(served: Served, reference: Reference) -> None:
    caller = Caller(served.gateway)
    with grpc.insecure_channel(served.kvmanager, options=CHANNEL_OPTIONS) as channel:
        stub = kvmanager_pb2_grpc.KVManagerServiceStub(channel)

        def memory() -> kvmanager_pb2.GetMemoryMapResponse:
            state: kvmanager_pb2.GetMemoryMapResponse = stub.GetMemoryMap(kvmanager_pb2.GetMemoryMapRequest())
            return state

        addresses = {address for address, _ in served.executors}
        eventually(lambda: {each.executor for each in memory().executors} == addresses, what="both are attached")
        tenants = {each.owner: (each.reserved_blocks, each.max_blocks, each.weight) for each in memory().tenants}
        assert tenants == {"acme": (0, 50, 1.0), "default": (8, 0, 2.0)}
        calls = [caller.start(f"served {i}", max_tokens=200, ignore_eos=True) for i in range(4)]
        for call in calls:
            call.wait_for_tokens(5)
        os.kill(int(served.executors[0][1]), signal.SIGKILL)
        for i, call in enumerate(calls):
            assert call.result().token_ids == reference.greedy(reference.encode(f"served {i}"), 200)
        eventually(lambda: "executor-1 died (killed by SIGKILL)" in served.launcher.output(), what="a word about it")
        eventually(lambda: {each.executor for each in memory().executors} == addresses, what="it is back")
    caller.close()
    served.launcher.terminate()
    assert served.launcher.wait() == 0
