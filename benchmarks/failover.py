"""How long streams stand still when the KV manager that leads ends and a standby takes over.

    python -m benchmarks.failover --model smollm2 --state redis://127.0.0.1:6379/0 --kills 10

Starts a stack as `octavo serve --standby` does, and again and again: starts streams, ends the leader (by `kill -9`, or
with `--how drain` as an update does), and waits until every stream has come to its end. Prints a JSON line for each
time, and the summary last. Times are from the signal to when the standby serves (`serves_s`), to the first token that
any stream gets after that (`first_token_s`), and to that of the stream that waits longest (`last_stream_s`). `equal`
counts the answers that are those of an undisturbed run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo.client import AsyncClient
from services.launcher import Stack, octavo_command
from services.model_store import resolve_model
from services.rpc import health

PROMPT = "Story number {number}. Once upon a time"
SECONDS_BETWEEN_KILLS = 8.0
"""A process that dies too often is not started again."""

WAIT_SECONDS = 60.0


class Stream:
    """One answer, and when its tokens came."""

    def __init__(self, number: int) -> None:
        self.prompt = PROMPT.format(number=number)
        self.token_ids: list[int] = []
        self.arrivals: list[float] = []

    async def run(self, client: AsyncClient, max_tokens: int) -> None:
        """Reads it to its end."""
        async for response in client.generate(self.prompt, max_tokens=max_tokens, temperature=0.0, ignore_eos=True):
            if response.token_ids:
                self.token_ids += response.token_ids
                self.arrivals.append(time.monotonic())

    def first_after(self, when: float) -> float:
        """When its first token after this time came."""
        return next(each for each in self.arrivals if each > when)


SIGNALS = {"kill": signal.SIGKILL, "drain": signal.SIGTERM}


async def measure(stack: Stack, how: str, kills: int, num_streams: int, max_tokens: int) -> list[dict[str, Any]]:
    """Ends the leader so many times."""
    lines = []
    async with AsyncClient(stack.addresses.gateway) as client:
        undisturbed = await _streams(client, num_streams, max_tokens)
        for kill in range(kills):
            leader, standby = await _leader_and_standby(stack)
            streams = [Stream(number) for number in range(num_streams)]
            running = asyncio.gather(*(stream.run(client, max_tokens) for stream in streams))
            await _until(lambda: all(len(stream.token_ids) >= 5 for stream in streams))  # noqa: B023 - awaited here
            serving = asyncio.ensure_future(_serves_at(stack.addresses.by_name()[standby]))
            os.kill(stack.pids[leader], SIGNALS[how])
            killed_at = time.monotonic()
            serves_at = await serving
            await running
            resumed = [stream.first_after(serves_at) - killed_at for stream in streams]
            equal = sum(a.token_ids == b.token_ids for a, b in zip(streams, undisturbed, strict=True))
            line = {"kill": kill, "serves_s": round(serves_at - killed_at, 3)}
            line |= {"first_token_s": round(min(resumed), 3), "last_stream_s": round(max(resumed), 3)}
            lines.append(line | {"streams": num_streams, "equal": equal})
            print(json.dumps(lines[-1]), flush=True)
            await asyncio.sleep(max(0.0, killed_at + SECONDS_BETWEEN_KILLS - time.monotonic()))
    return lines


async def _streams(client: AsyncClient, num_streams: int, max_tokens: int) -> list[Stream]:
    streams = [Stream(number) for number in range(num_streams)]
    await asyncio.gather(*(stream.run(client, max_tokens) for stream in streams))
    return streams


async def _leader_and_standby(stack: Stack) -> tuple[str, str]:
    """The KV manager that leads, once the other one stands by, and that one."""
    end = time.monotonic() + WAIT_SECONDS
    names = [name for name in stack.addresses.by_name() if name.startswith("kvmanager")]
    while time.monotonic() < end:
        states = [await _state(stack.addresses.by_name()[name]) for name in names]
        if sorted(states) == ["leads", "stands by"]:
            return names[states.index("leads")], names[states.index("stands by")]
        await asyncio.sleep(0.05)
    raise TimeoutError("no leader with a standby")


async def _state(address: str) -> str:
    async with grpc.aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        serving = []
        for name in ("", health.STANDBY):
            try:
                answer = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=1.0)
            except grpc.aio.AioRpcError:
                return "away"
            serving.append(answer.status == health_pb2.HealthCheckResponse.SERVING)
    return "leads" if serving[0] else "stands by" if serving[1] else "away"


async def _serves_at(address: str) -> float:
    """When it began to serve."""
    async with grpc.aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        async for answer in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()):
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                return time.monotonic()
    raise TimeoutError("the standby is gone")


async def _until(condition: Any) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the streams do not begin")
        await asyncio.sleep(0.01)


async def run(arguments: argparse.Namespace) -> None:
    """Starts the stack, measures, prints."""
    settings = {
        "model": resolve_model(arguments.model),
        "state": arguments.state,
        "log_level": "info" if arguments.verbose else "warning",
        "threads": arguments.threads,
    }
    log = (lambda line: print(line, file=sys.stderr)) if arguments.verbose else (lambda line: None)
    async with Stack(octavo_command(settings), port=0, http_port=0, standby=True, log=log) as stack:
        lines = await measure(stack, arguments.how, arguments.kills, arguments.streams, arguments.max_tokens)
    summary: dict[str, Any] = {"how": arguments.how, "kills": len(lines), "streams": arguments.streams}
    for name in ("serves_s", "first_token_s", "last_stream_s"):
        times = [line[name] for line in lines]
        summary |= {f"{name}_median": round(statistics.median(times), 3), f"{name}_max": max(times)}
    summary["answers"] = len(lines) * arguments.streams
    summary["equal"] = sum(line["equal"] for line in lines)
    print(json.dumps(summary))


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--state", required=True, help="redis:// URL")
    parser.add_argument("--how", choices=sorted(SIGNALS), default="kill")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--threads", type=int, help="of the executor")
    parser.add_argument("--verbose", action="store_true", help="what the processes say, on standard error")
    asyncio.run(run(parser.parse_args(arguments)))


if __name__ == "__main__":
    main()
