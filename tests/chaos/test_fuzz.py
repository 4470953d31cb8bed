"""Every method of the public service gets thousands of messages that are almost right, or not at all."""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from google.rpc.status_pb2 import Status

from octavo.client import AsyncClient, OctavoError
from octavo.v1 import inference_pb2
from tests.chaos.messages import Messages, names_a_field
from tests.services.e2e.processes import ROOT, Processes, Server
from tests.services.e2e.stack import MODEL_NAME, Stack, make_executor
from tests.services.e2e.tiny_model import save_tiny_model

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

NUM_INPUTS = 20_000
NUM_AT_ONCE = 48
NUM_CHANNELS = 4
SERVICE = inference_pb2.DESCRIPTOR.services_by_name["GenerationService"]
WEIGHTS = [1 + len(method.input_type.fields) for method in SERVICE.methods]
"""The more can be wrong with a method's request, the more often it is called."""

MAX_MESSAGE_BYTES = 256 * 1024

GROWTH_BYTES = 64 * 1024 * 1024
"""What the gateway may gain while it answers three quarters of all inputs."""

KNOWN = {
    "model": lambda rng: rng.choice(("", "", MODEL_NAME, MODEL_NAME, "other")),
    "role": lambda rng: rng.choice(("system", "user", "assistant", "tool")),
    "request_id": lambda rng: rng.choice(("", "", f"request-{rng.randrange(40)}")),
    "shared": lambda rng: rng.choice(("docs", "law")),
    "max_tokens": lambda rng: rng.randrange(1, 12),
    "min_tokens": lambda rng: rng.randrange(3),
    "token_ids": lambda rng: rng.randrange(384),
    "stop_token_ids": lambda rng: rng.randrange(384),
    "key": lambda rng: rng.randrange(384),
    "n": lambda rng: rng.randrange(1, 4),
    "best_of": lambda rng: rng.randrange(2, 5),
    "beam_width": lambda rng: rng.randrange(1, 4),
    "priority": lambda rng: rng.randrange(-100, 101),
    "temperature": lambda rng: rng.choice((0.0, 0.0, 0.7)),
    "from_token": lambda rng: rng.randrange(8),
    "logprobs": lambda rng: rng.randrange(6),
    "top_p": lambda rng: rng.uniform(0.1, 1),
    "repetition_penalty": lambda rng: rng.uniform(0.5, 2),
}
USUAL = ("prompt", "sampling", "max_tokens", "messages", "segments", "token_ids", "role", "content", "request_id")
USUAL += ("pin_id", "ttl")


def documented_statuses() -> set[str]:
    """Those in the table of docs/architecture.md."""
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    return set(re.findall(r"^\| ([A-Z_]+) \|", text, re.MULTILINE))


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    model = tmp_path_factory.mktemp("model")
    save_tiny_model(model)
    processes = Processes(tmp_path_factory.mktemp("logs"))
    gateway = {"max_message_bytes": MAX_MESSAGE_BYTES, "shared_namespaces": "docs=default"}
    stack = Stack(processes, model, make_executor(processes, model), gateway=gateway)
    stack.start()
    yield stack
    stack.close()
    processes.end()


class Fuzzer:
    """Sends messages and notes what comes back.

    Attributes:
        answers: how often each method ended in each status.
        problems: what should not have been.
    """

    def __init__(self, address: str, rng: random.Random) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        self._channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(NUM_CHANNELS)]
        self._rng = rng
        self._pin_ids = deque(["none"], maxlen=20)
        known = {**KNOWN, "pin_id": lambda rng: rng.choice(self._pin_ids)}
        self._messages = Messages(rng, known, USUAL)
        self._allowed = documented_statuses() | {"OK", "CANCELLED"}
        self.answers: Counter[tuple[str, str]] = Counter()
        self.problems: list[str] = []

    async def send(self, count: int) -> None:
        """So many, over all methods, many at once."""
        left = iter(range(count))
        await asyncio.gather(*(self._send_from(left) for _ in range(NUM_AT_ONCE)))

    async def _send_from(self, left: Iterator[int]) -> None:
        for _ in left:
            (method,) = self._rng.choices(SERVICE.methods, WEIGHTS)
            data = self._messages.make(method.input_type)
            status = await self._call(method, data, self._rng.choice((0.02, 0.3, 1.0, 1.0)))
            self.answers[method.name, status] += 1

    async def _call(self, method: MethodDescriptor, data: bytes, deadline: float) -> str:
        path = f"/{SERVICE.full_name}/{method.name}"
        channel = self._rng.choice(self._channels)
        leaves_after = self._rng.randrange(3) if self._rng.random() < 0.1 else None
        try:
            if method.server_streaming:
                call = channel.unary_stream(path)(data, timeout=deadline)
                async for number, _ in _numbered(call):
                    if number == leaves_after:
                        call.cancel()
                        return "CANCELLED"
            else:
                answer = await channel.unary_unary(path)(data, timeout=deadline)
                if method.name == "PinPrefix":
                    self._pin_ids.append(inference_pb2.PinPrefixResponse.FromString(answer).pin.pin_id)
        except grpc.aio.AioRpcError as error:
            self._judge(method, data, error)
            return error.code().name
        return "OK"

    def _judge(self, method: MethodDescriptor, data: bytes, error: grpc.aio.AioRpcError) -> None:
        code = error.code()
        what = f"{method.name}: {code.name}: {error.details()}"
        if code.name not in self._allowed:
            self.problems.append(f"not a documented status: {what}; sent {data[:300]!r}")
        if code is grpc.StatusCode.INVALID_ARGUMENT:
            details = _details(error)
            fields = [violation.field for violation in details.bad_request.field_violations]
            if details.info.reason != "MALFORMED_REQUEST" and not fields:
                self.problems.append(f"names no field: {what}; sent {data[:300]!r}")
            unknown = [field for field in fields if not names_a_field(method.input_type, field)]
            if unknown:
                self.problems.append(f"names {unknown}, which are no fields: {what}; sent {data[:300]!r}")

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close(None)


async def _numbered(call: Any) -> Any:
    number = 0
    async for response in call:
        yield number, response
        number += 1


class _Details:
    def __init__(self) -> None:
        self.bad_request = BadRequest()
        self.info = ErrorInfo()


def _details(error: grpc.aio.AioRpcError) -> _Details:
    found = _Details()
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in Status.FromString(value).details:
                for message in (found.bad_request, found.info):
                    if detail.Is(message.DESCRIPTOR):
                        detail.Unpack(message)
    return found


def resident_bytes(server: Server) -> int:
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{server.pid}/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


def is_complaint(line: str) -> bool:
    """Whether a process says of itself that something in it is broken."""
    return '"level": "error"' in line or '"level": "critical"' in line or "Traceback" in line


async def unpin_all(address: str) -> None:
    """What was pinned in earnest would stay for up to 30 days."""
    async with AsyncClient(address) as client:
        for pin in await client.pins():
            try:
                await client.unpin(pin)
            except OctavoError as error:
                if error.status is not grpc.StatusCode.NOT_FOUND:  # its time was over in between
                    raise


async def test_no_message_breaks_anything(stack: Stack) -> None:
    seed = random.SystemRandom().getrandbits(32)
    fuzzer = Fuzzer(stack.gateway.address, random.Random(seed))
    servers = (stack.gateway, stack.kvmanager, stack.executor)
    pids = [server.pid for server in servers]
    start = time.monotonic()
    await fuzzer.send(NUM_INPUTS // 4)
    await unpin_all(stack.gateway.address)
    before = resident_bytes(stack.gateway)
    await fuzzer.send(NUM_INPUTS - NUM_INPUTS // 4)
    await unpin_all(stack.gateway.address)
    growth = resident_bytes(stack.gateway) - before
    await fuzzer.close()
    counts: dict[str, dict[str, int]] = {method.name: {} for method in SERVICE.methods}
    for (method, status), count in sorted(fuzzer.answers.items()):
        counts[method][status] = count
    summary = {"seed": seed, "inputs": NUM_INPUTS, "seconds": round(time.monotonic() - start, 1)}
    print(json.dumps({**summary, "gateway_growth_bytes": growth, "answers": counts}))

    assert not fuzzer.problems, f"seed {seed}: {len(fuzzer.problems)} problems: " + "\n".join(fuzzer.problems[:20])
    assert all(server.running for server in servers), f"seed {seed}"
    complaints = [line for server in servers for line in server.output().splitlines() if is_complaint(line)]
    assert not complaints, f"seed {seed}: " + "\n".join(complaints[:20])
    assert [server.pid for server in servers] == pids
    assert all(counts[method.name].get("OK") for method in SERVICE.methods), counts
    await asyncio.to_thread(stack.wait_until_idle, 60.0)
    assert growth < GROWTH_BYTES, f"seed {seed}"
    assert len(stack.caller.generate("The sheet", max_tokens=5, ignore_eos=True).token_ids) == 5


HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def garbage(rng: random.Random) -> bytes:
    """What may come to a port from whoever finds it open."""
    frame = rng.randrange(1 << 14).to_bytes(3, "big") + rng.randbytes(6) + rng.randbytes(rng.randrange(300))
    settings = b"\0\0\0\4\0\0\0\0\0"
    return rng.choice(
        (
            rng.randbytes(rng.randrange(1, 2000)),
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(508),
            HTTP2_PREFACE,
            HTTP2_PREFACE[: rng.randrange(24)],
            HTTP2_PREFACE + settings + frame,
            HTTP2_PREFACE + settings + frame * 20,
            HTTP2_PREFACE + settings + b"\xff\xff\xff\1\4\0\0\0\1",
            HTTP2_PREFACE + settings + b"\0\0\4\3\0\0\0\0\1\0\0\0\x08" * 500,
        )
    )


def test_bytes_that_are_no_call_at_all(stack: Stack) -> None:
    seed = random.SystemRandom().getrandbits(32)
    rng = random.Random(seed)
    pid = stack.gateway.pid
    host, _, port = stack.gateway.address.rpartition(":")
    held = []
    for _ in range(400):
        connection = socket.create_connection((host, int(port)), timeout=10)
        with suppress(OSError):
            connection.sendall(garbage(rng))
        # Some stay open and say nothing more.
        held.append(connection)
        if len(held) > 50:
            held.pop(rng.randrange(len(held))).close()
    assert stack.caller.generate("The sheet", max_tokens=5, ignore_eos=True).token_ids, f"seed {seed}"
    for connection in held:
        connection.close()
    assert stack.gateway.running
    assert stack.gateway.pid == pid, f"seed {seed}"


@pytest.mark.parametrize("size", [4_000, 100_000, 2_000_000])
def test_metadata_that_is_far_too_long(stack: Stack, size: int) -> None:
    call = stack.caller.start("The sheet", max_tokens=2, ignore_eos=True, metadata={"x-long": "x" * size}, deadline=20)
    if size < 8_000:
        assert len(call.result().token_ids) == 2
    else:
        assert call.error().status in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
    assert len(stack.caller.generate("The sheet", max_tokens=2, ignore_eos=True).token_ids) == 2


def test_a_method_that_does_not_exist(stack: Stack) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stack.caller.channel.unary_unary(f"/{SERVICE.full_name}/Absent")(b"\0" * 100, timeout=20)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
