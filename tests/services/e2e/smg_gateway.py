"""smg, the router from PyPI, as a process in front of Octavo's gateways."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Sequence
from urllib.error import URLError

from tests.clients_environment import clients_python
from tests.ports import free_port
from tests.services.e2e.processes import Process, Processes, eventually

_SAMPLE = re.compile(r"^(\w+)\{(.*)\} (\S+)$")


class Smg:
    """A router that sends requests where their prefixes are cached, as KV events tell it.

    Args:
        workers: addresses of Octavo's gateways.
    """

    def __init__(self, processes: Processes, workers: Sequence[str]) -> None:
        python = clients_python("smg")
        port, self._metrics_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{port}/v1"
        command = [str(python), "-m", "smg", "launch", "--host=127.0.0.1", f"--port={port}", "--log-level=info"]
        command += [f"--prometheus-port={self._metrics_port}", "--policy=cache_aware", "--load-monitor-interval=1"]
        command.append("--worker-urls")
        command += [f"grpc://{worker}" for worker in workers]
        # It looks for a model's tokenizer on the hub first, and asks its worker then.
        self._process: Process = processes.other("smg", command, HF_ENDPOINT=f"http://127.0.0.1:{free_port()}")
        self._workers = workers

    def start(self) -> None:
        """Returns when it knows all of its workers and hears of their KV events."""
        self._process.start()

        def ready() -> bool:
            assert self._process.running, self._process.output()
            return all(self.metric("smg_kv_event_subscriptions_total", worker) for worker in self._workers)

        eventually(ready, what="smg is ready")
        eventually(lambda: "Successfully registered tokenizer" in self._process.output(), what="smg has the tokenizer")

    def known_blocks(self, worker: str) -> int:
        """How many cached blocks it thinks that a gateway has."""
        return int(self.metric("smg_kv_index_blocks", worker))

    def metric(self, name: str, worker: str) -> float:
        """What it counts of one gateway; 0 while there is no such count."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics_port}/metrics", timeout=10) as answer:
                lines = answer.read().decode().splitlines()
        except URLError:
            return 0.0
        samples = [sample for sample in map(_SAMPLE.match, lines) if sample is not None]
        return sum(float(each[3]) for each in samples if each[1] == name and worker in each[2])

    def close(self) -> None:
        self._process.kill()
