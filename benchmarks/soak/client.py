"""Sends one request, does with it what was planned, and keeps all that came back."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from benchmarks.soak.workload import Kind, Planned
from octavo.client import OctavoError
from octavo.v1 import inference_pb2, inference_pb2_grpc

# Every client has a connection of its own.
_CHANNEL_OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]


@dataclass
class Answer:
    """What one request got.

    Attributes:
        responses: In the order of their arrival.
        error: How the call failed, or None.
        cancelled: The client broke it off, as planned.
        seconds: From the call's begin to its end.
        seconds_to_first: To the first response with a token, or None.
    """

    planned: Planned
    responses: list[inference_pb2.GenerateResponse] = field(default_factory=list)
    error: OctavoError | None = None
    cancelled: bool = False
    seconds: float = 0.0
    seconds_to_first: float | None = None

    @property
    def outcome(self) -> str:
        """How it ended, in one word."""
        if self.cancelled:
            return "cancelled"
        return self.error.status.name.lower() if self.error else "ok"


class SoakClient:
    """One of the clients. Belongs to the event loop that it was made in."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._connect()

    def _connect(self) -> None:
        self._channel = grpc.aio.insecure_channel(self._address, options=_CHANNEL_OPTIONS)
        self._stub = inference_pb2_grpc.GenerationServiceStub(self._channel)

    async def send(self, planned: Planned) -> Answer:
        """Sends a request and returns when its call is over."""
        answer = Answer(planned)
        started = time.monotonic()
        call = self._stub.Generate(planned.request, timeout=planned.deadline)
        with _cancelled_after(planned.cancel_seconds, answer, call):
            await _receive(call, answer, started)
        if answer.cancelled:
            await self._go(planned.kind, call)
        answer.seconds = time.monotonic() - started
        return answer

    async def _go(self, kind: Kind, call: Any) -> None:
        if kind is Kind.LEAVE:
            await self._channel.close(None)
            self._connect()
        else:
            call.cancel()

    async def close(self) -> None:
        """Closes the connection."""
        await self._channel.close(None)


async def _receive(call: Any, answer: Answer, started: float) -> None:
    try:
        async for response in call:
            if response.token_ids and answer.seconds_to_first is None:
                answer.seconds_to_first = time.monotonic() - started
            answer.responses.append(response)
            if len(answer.responses) == answer.planned.cancel_after:
                answer.cancelled = True
                return
    except grpc.RpcError as error:
        answer.error = OctavoError.from_rpc(error)
    except asyncio.CancelledError:
        # grpc.aio raises it for a call that was cancelled here; anybody else's goes on up.
        if not answer.cancelled:
            call.cancel()
            raise


@contextmanager
def _cancelled_after(seconds: float | None, answer: Answer, call: Any) -> Iterator[None]:
    """Cancels the call so long after now, unless it has ended by then."""

    def cancel() -> None:
        answer.cancelled = call.cancel()

    timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, cancel)
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
