"""The one stream to the KV manager, which carries all requests of this gateway."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, TypeAlias, TypeVar

import grpc

from octavo.v1 import inference_pb2, kvmanager_pb2, kvmanager_pb2_grpc
from services.gateway.codec import decode_tokens, decode_update
from services.gateway.pacer import Pace, Pacer
from services.gateway.request_stream import RequestStream
from services.rpc.channel import Connect
from services.rpc.status import RpcError

log = logging.getLogger(__name__)

Stream: TypeAlias = "grpc.aio.StreamStreamCall[kvmanager_pb2.AttachRequest, kvmanager_pb2.AttachResponse]"

R = TypeVar("R")

_USUAL_PACE = Pace()

RETRY_SECONDS = 0.2
RETRY_AFTER_SECONDS = 1.0
"""What a client is told to wait when there is no KV manager."""

_LONG_MESSAGE_BYTES = 1 << 20
"""What is longer is sent without more."""

ANSWER_SECONDS = 10.0
"""What the KV manager gets for a question that it answers from memory; one that takes longer hangs."""


class KVManagerLink:
    """Stays attached. Requests that run when the stream breaks end with UNAVAILABLE.

    Args:
        address: where the KV manager is.
        on_change: called when the backend becomes ready or stops being so.
        responses_per_second: how many may leave, over all requests, before some are joined.
        connect: reaches it.
    """

    def __init__(
        self, address: str, on_change: Callable[[], None], responses_per_second: float, connect: Connect
    ) -> None:
        self._address = address
        self._connect = connect
        self._on_change = on_change
        self._handles = count(1)
        self._requests: dict[int, RequestStream] = {}
        self._pacer = Pacer(responses_per_second)
        self._token_interval_us = 0
        self._outbox: asyncio.Queue[kvmanager_pb2.AttachRequest] = asyncio.Queue()
        self._attached = False
        self._backend = kvmanager_pb2.BackendState()
        self._stub: Any = None

    @property
    def ready(self) -> bool:
        """Attached to a KV manager that has an executor."""
        return self._attached and self._backend.ready

    @property
    def model(self) -> inference_pb2.Model:
        """The model behind the KV manager.

        Raises:
            RpcError: UNAVAILABLE while there is none.
        """
        self._check_attached()
        if not self._backend.HasField("model"):
            raise _unavailable("no executor is connected")
        return self._backend.model

    def submit(self, make: Callable[[int], kvmanager_pb2.Submission], pace: Pace = _USUAL_PACE) -> RequestStream:
        """Sends a request, made for its handle on this stream.

        Raises:
            RpcError: UNAVAILABLE while there is no KV manager.
        """
        self._check_attached()
        handle = next(self._handles)
        message = kvmanager_pb2.AttachRequest(submissions=[make(handle)])
        stream = self._requests[handle] = RequestStream(handle, self.abort, self._forget, self._pacer, pace)
        self._pacer.join(pace)
        self._set_token_interval(message)
        self._outbox.put_nowait(message)
        return stream

    def _set_token_interval(self, message: kvmanager_pb2.AttachRequest) -> None:
        """Tokens that would wait for their turn here may as well come together."""
        interval_us = round(self._pacer.shortest_interval * 1e6)
        if interval_us != self._token_interval_us:
            self._token_interval_us = message.token_interval_us = interval_us

    async def unpin(self, tenant: str, pin_id: str) -> None:
        """Lets go of one of a tenant's pins.

        Raises:
            RpcError: NOT_FOUND: there is none of that id; UNAVAILABLE while there is no KV manager.
        """
        request = kvmanager_pb2.UnpinRequest(tenant=tenant, pin_id=pin_id)
        await self._ask(lambda stub: stub.Unpin(request, timeout=ANSWER_SECONDS))

    async def pins(self, tenant: str) -> list[inference_pb2.Pin]:
        """A tenant's pins.

        Raises:
            RpcError: UNAVAILABLE while there is no KV manager.
        """
        request = kvmanager_pb2.ListTenantPinsRequest(tenant=tenant)
        answer: kvmanager_pb2.ListTenantPinsResponse = await self._ask(
            lambda stub: stub.ListTenantPins(request, timeout=ANSWER_SECONDS)
        )
        return list(answer.pins)

    async def _ask(self, call: Callable[[Any], Awaitable[R]]) -> R:
        self._check_attached()
        try:
            return await call(self._stub)
        except grpc.aio.AioRpcError as error:
            raise _refusal(error) from error

    def _check_attached(self) -> None:
        if not self._attached:
            raise _unavailable("the KV manager can't be reached")

    def abort(self, abort: kvmanager_pb2.Abort) -> None:
        """Ends a request or one of its sequences there."""
        if self._attached:
            self._outbox.put_nowait(kvmanager_pb2.AttachRequest(aborts=[abort]))

    def _forget(self, handle: int) -> None:
        stream = self._requests.pop(handle, None)
        if stream is None:
            return
        self._pacer.leave(stream.pace)
        # Those that are left are told of it when it has become much shorter; otherwise with the next request.
        if self._requests and self._pacer.shortest_interval * 1e6 < self._token_interval_us / 2:
            message = kvmanager_pb2.AttachRequest()
            self._set_token_interval(message)
            self._outbox.put_nowait(message)

    async def run(self) -> None:
        """Stays attached until cancelled."""
        async with self._connect(self._address) as channel:
            self._stub = kvmanager_pb2_grpc.KVManagerServiceStub(channel)
            await self._stay_attached()

    async def _stay_attached(self) -> None:
        quiet = False
        while True:
            try:
                reason = await self._attach_once()
            except grpc.aio.AioRpcError as error:
                reason = f"{error.code().name}: {error.details()}"
            except asyncio.InvalidStateError:
                reason = "the stream is closed"
            except ValueError as error:
                reason = f"a message that makes no sense: {error}"
            quiet = quiet and not self._attached
            log.log(logging.DEBUG if quiet else logging.WARNING, "KV manager away", extra={"reason": reason})
            quiet = True
            self._lose()
            await asyncio.sleep(RETRY_SECONDS)

    async def _attach_once(self) -> str:
        async with self._connect(self._address) as channel:
            call = kvmanager_pb2_grpc.KVManagerServiceStub(channel).Attach()
            writer = asyncio.ensure_future(self._write(call))
            try:
                async for message in call:
                    self._take(message)
                return "the KV manager ended the stream"
            finally:
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)
                call.cancel()

    async def _write(self, call: Stream) -> None:
        """Requests that arrive while one is being sent go together."""
        while True:
            message = await self._outbox.get()
            while not self._outbox.empty() and message.ByteSize() < _LONG_MESSAGE_BYTES:
                message.MergeFrom(self._outbox.get_nowait())
            await call.write(message)

    def _take(self, message: kvmanager_pb2.AttachResponse) -> None:
        if message.HasField("backend"):
            self._backend = message.backend
            self._attached = True
            self._on_change()
            log.info("backend", extra={"ready": message.backend.ready, "epoch": message.backend.epoch})
        find = self._requests.get
        for progress in message.progress:
            if (stream := find(progress.handle)) is not None:
                stream.add_progress(progress.prefill)
        for handle, tokens in decode_tokens(message.tokens):
            if (stream := find(handle)) is not None:
                stream.add(tokens)
        for update in message.updates:
            if (stream := find(update.handle)) is not None:
                stream.add(decode_update(update))
        for end in message.ends:
            if (stream := find(end.handle)) is not None:
                stream.end(end)

    def _lose(self) -> None:
        """The stream is gone, and with it whatever was on its way."""
        self._attached = False
        self._outbox = asyncio.Queue()
        self._token_interval_us = 0
        for stream in self._requests.values():
            self._pacer.leave(stream.pace)
            stream.fail(_unavailable("the connection to the KV manager was lost"))
        self._requests.clear()
        self._on_change()


def _unavailable(message: str) -> RpcError:
    return RpcError(grpc.StatusCode.UNAVAILABLE, message, "BACKEND_UNAVAILABLE", retry_after=RETRY_AFTER_SECONDS)


def _refusal(error: grpc.aio.AioRpcError) -> RpcError:
    """What a client is told when a question to the KV manager failed."""
    code, message = error.code(), error.details() or ""
    if code is grpc.StatusCode.NOT_FOUND:
        return RpcError(code, message, "NOT_FOUND")
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return _unavailable("the KV manager can't be reached")
    log.error("a question to the KV manager failed", extra={"code": code.name, "reason": message})
    return RpcError(grpc.StatusCode.INTERNAL, "internal error; see the gateway's log", "INTERNAL")
