"""Processes under test: started as a user would start them, watched, killed, and ended for certain."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.ports import free_port

ROOT = Path(__file__).parents[3]
PATIENCE = 60.0
"""Seconds after which something that should happen at once counts as never happening, on a machine that is busy."""

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

# A process that comes back is to be seen at once.
CHANNEL_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 200),
]

T = TypeVar("T")


def eventually(look: Callable[[], T], seconds: float = PATIENCE, what: str = "") -> T:
    """Looks until what it sees is true, and returns that.

    Raises:
        AssertionError: it was not in time.
    """
    end = time.monotonic() + seconds
    while not (seen := look()):
        assert time.monotonic() < end, f"not within {seconds:g} s: {what or look}; last seen: {seen!r}"
        time.sleep(0.01)
    return seen


class Process:
    """One process, which may be started again with the same command line.

    Its standard input is a pipe that ends with the tests, so that it does not outlive them even if they are killed.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path, **environment: str) -> None:
        self.name = name
        self._command = command
        self._log = log
        self._environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("OCTAVO_", "OTEL_"))
        }
        # What it keeps for its next start goes with the test.
        self._environment |= {"OCTAVO_CACHE": str(log.parent / "cache")} | environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=self._environment, stdin=subprocess.PIPE, stdout=log, stderr=log
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll() if self._process else 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def output(self) -> str:
        """All that it has said, over all its starts."""
        return self._log.read_text("utf-8", "replace") if self._log.exists() else ""

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def terminate(self) -> None:
        """Asks it to stop."""
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it at once, as `kill -9` does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Holds it still: whatever should happen meanwhile happens without it."""
        self.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.signal(signal.SIGCONT)

    @contextmanager
    def held(self) -> Iterator[None]:
        """It stands still for the time of a block."""
        self.pause()
        try:
            yield
        finally:
            self.go_on()

    def wait(self, seconds: float = PATIENCE) -> int:
        """Its exit code."""
        assert self._process is not None
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} has not ended within {seconds:g} s") from None


class Server(Process):
    """A process that answers grpc.health.v1."""

    def __init__(self, name: str, command: Sequence[str], log: Path, address: str, **environment: str) -> None:
        super().__init__(name, command, log, **environment)
        self.address = address
        self.http_address = ""
        """A gateway's."""

    def health(self, service: str = "") -> int | grpc.StatusCode:
        """What it says about a service, or the status of the call."""
        with grpc.insecure_channel(self.address, options=CHANNEL_OPTIONS) as channel:
            request = health_pb2.HealthCheckRequest(service=service)
            try:
                status: int = health_pb2_grpc.HealthStub(channel).Check(request, timeout=5).status
            except grpc.RpcError as error:
                code: grpc.StatusCode = error.code()
                return code
        return status

    def wait_until_listening(self) -> None:
        self._wait_for_health(lambda health: health in (SERVING, NOT_SERVING))

    def wait_until_serving(self) -> None:
        self._wait_for_health(lambda health: health == SERVING)

    def wait_until_not_serving(self) -> None:
        self._wait_for_health(lambda health: health != SERVING)

    def _wait_for_health(self, good: Callable[[int | grpc.StatusCode], bool]) -> None:
        def look() -> bool:
            assert self.running, f"{self.name} ended with {self.exit_code}:\n{self.output()}"
            return good(self.health())

        eventually(look, what=f"health of {self.name}")


class Processes:
    """Starts processes, each with a log of its own, and ends them all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._all: list[Process] = []

    def octavo(self, command: str, environment: dict[str, str] | None = None, **settings: object) -> Server:
        """One of the three services on a free port, with its settings as flags. It is not started yet."""
        address = f"127.0.0.1:{free_port()}"
        if command == "gateway":
            settings = {"http_port": free_port()} | settings
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        command_line = [sys.executable, "-m", "services.cli.app", "--stop-with-stdin", command]
        command_line += [f"--port={address.rpartition(':')[2]}", *flags]
        server = Server(command, command_line, self._log(command), address, **(environment or {}))
        if command == "gateway":
            server.http_address = f"127.0.0.1:{settings['http_port']}"
        self._all.append(server)
        return server

    def other(self, name: str, command: Sequence[str], **environment: str) -> Process:
        """Any other program. It is not started yet."""
        process = Process(name, command, self._log(name), **environment)
        self._all.append(process)
        return process

    def _log(self, name: str) -> Path:
        return self._folder / f"{len(self._all):03}-{name}.log"

    def end(self) -> None:
        for process in self._all:
            process.kill()

    def logs(self) -> list[tuple[str, str]]:
        """The last lines of those that were started, running ones last."""
        started = [process for process in self._all if process.output()]
        return [(process.name, process.output()[-4000:]) for process in sorted(started, key=lambda each: each.running)]
