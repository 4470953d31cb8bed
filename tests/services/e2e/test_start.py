"""Starts that can't work, and the end of a process that still waits for the next one."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.services.e2e.processes import Processes, Server
from tests.services.e2e.stack import MODEL_NAME, make_executor


def make_server(name: str, processes: Processes, model: Path) -> Server:
    """One of the three, with nobody to talk to."""
    if name == "executor":
        return make_executor(processes, model)
    nobody = f"127.0.0.1:{free_port()}"
    if name == "kvmanager":
        return processes.octavo(name, executors=nobody)
    return processes.octavo(name, model=model, model_name=MODEL_NAME, kvmanager=nobody)


@pytest.mark.parametrize("name", ["gateway", "kvmanager", "executor"])
def test_a_port_in_use(processes: Processes, model: Path, name: str) -> None:
    """One line says which, and the exit code is that of unusable settings."""
    server = make_server(name, processes, model)
    with socket.create_server(("127.0.0.1", int(server.address.rpartition(":")[2]))):
        server.start()
        assert server.wait() == 2
    lines = [line for line in server.output().splitlines() if not line.startswith("{")]
    assert len(lines) == 1, server.output()
    assert lines[0].startswith("octavo: ")
    assert server.address in lines[0]


@pytest.mark.parametrize("name", ["gateway", "kvmanager"])
def test_an_end_while_it_waits_for_the_others(processes: Processes, model: Path, name: str) -> None:
    server = make_server(name, processes, model)
    server.start()
    server.wait_until_listening()
    server.terminate()
    assert server.wait(10) == 0
    assert "Traceback" not in server.output()
