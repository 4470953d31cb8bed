"""Octavo as a user starts it: `octavo serve`, its three processes, and a client that drives them over gRPC."""

from __future__ import annotations

import asyncio
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc
import uvloop

from benchmarks.answers import Answer
from benchmarks.request_sets import RequestSet, TokenRequest
from octavo.client import AsyncClient
from octavo.v1 import executor_pb2, executor_pb2_grpc

_READY = re.compile(r"Octavo serves \S+ on (\S+) and on (\S+)")
_GATEWAY = re.compile(r"gateway serves on \S+, process (\d+)")
_EXECUTOR = re.compile(r"executor serves on (\S+), process \d+")
_START_SECONDS = 300.0
_STOP_SECONDS = 60.0
_LAST_LINES = 5
_CHANNEL_OPTIONS = [("grpc.enable_http_proxy", 0)]


class StackFailed(Exception):
    """The stack did not start or stop as it should."""


class OctavoServe:
    """A running `octavo serve`; a context manager that stops it.

    Attributes:
        name: of the system, with how its weights are quantized.
        start_s: seconds from starting the command until it served.
        address: of the gateway, host:port.
        http_url: where it serves HTTP.
        pid: of the launcher, the parent of all.
    """

    def __init__(self, model: str | Path, options: Mapping[str, Any] | None = None) -> None:
        """Starts it.

        Args:
            model: folder, file, or name that `octavo serve` knows.
            options: more flags of `octavo serve`, by name without the dashes; None leaves a flag out.

        Raises:
            StackFailed: it ended, or took too long.
        """
        self.name = " ".join(filter(None, ("octavo", (options or {}).get("quantize"))))
        self._lines: list[str] = []
        self._ready: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
        values = {"port": 0, "http-port": 0, "log-level": "warning"} | dict(options or {})
        flags = [f"--{name}={value}" for name, value in values.items() if value is not None]
        start = [sys.executable, "-m", "services.cli.app", "--stop-with-stdin", "serve"]
        began = time.perf_counter()
        self._process = subprocess.Popen(
            [*start, "--model", str(model), *flags],
            # Never written to: it ends when this process does, however that ends.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.pid = self._process.pid
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.address, self.http_url = self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        self.start_s = time.perf_counter() - began

    def run(self, requests: RequestSet) -> list[Answer]:
        """Sends the requests from this process, over one connection, and waits for all answers."""
        return uvloop.run(_drive(self.address, requests))

    def details(self) -> dict[str, Any]:
        """Version, and which kernels run."""
        executor = next(match[1] for line in self._lines if (match := _EXECUTOR.fullmatch(line)))
        with grpc.insecure_channel(executor, options=_CHANNEL_OPTIONS) as channel:
            stub = executor_pb2_grpc.ExecutorServiceStub(channel)
            described: executor_pb2.DescribeResponse = stub.Describe(executor_pb2.DescribeRequest(), timeout=30.0)
        return {"version": version("octavo"), "kernels": described.attention_backend, "dtype": described.dtype}

    def stop(self) -> None:
        """Does what Ctrl-C does.

        Raises:
            StackFailed: it did not end.
        """
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise StackFailed(f"did not stop in {_STOP_SECONDS:.0f} s") from None
        finally:
            assert self._process.stdin is not None
            self._process.stdin.close()

    def __enter__(self) -> OctavoServe:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def gateway_pid(self) -> int:
        """The gateway's process."""
        return next(int(match[1]) for line in self._lines if (match := _GATEWAY.fullmatch(line)))

    def _wait_until_ready(self) -> tuple[str, str]:
        try:
            addresses = self._ready.get(timeout=_START_SECONDS)
        except queue.Empty:
            raise StackFailed(f"does not serve after {_START_SECONDS:.0f} s") from None
        if addresses is None:
            said = "\n".join(self._lines[-_LAST_LINES:])
            raise StackFailed(f"did not start; it said:\n{said}")
        return addresses

    def _read(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            self._lines.append(raw.rstrip())
            if match := _READY.fullmatch(self._lines[-1]):
                self._ready.put((match[1], match[2]))
        self._ready.put(None)


async def _drive(address: str, requests: RequestSet) -> list[Answer]:
    async with AsyncClient(address, retry=None) as client:
        await client.models()  # connects
        if requests.at_once:
            return list(await asyncio.gather(*(_send(client, request) for request in requests.requests)))
        return [await _send(client, request) for request in requests.requests]


async def _send(client: AsyncClient, request: TokenRequest) -> Answer:
    sent, first, last = time.perf_counter(), 0.0, 0.0
    token_ids: list[int] = []
    responses = client.generate(request.prompt, max_tokens=request.output_tokens, temperature=0.0, ignore_eos=True)
    async for response in responses:
        if response.token_ids:
            last = time.perf_counter()
            first = first or last
            token_ids += response.token_ids
    return Answer(sent, first, last, token_ids)
