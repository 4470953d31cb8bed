"""Streams of responses: to requests that begin here, and to those that began with a call that broke."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import grpc

from gateway.gateway import Gateway
from gateway.prepared import PreparedRequest
from octavo.v1 import inference_pb2
from services.gateway.admission import Visit
from services.gateway.backends import Backends
from services.gateway.generation import Generation
from services.gateway.metrics.calls import CallMeter
from services.gateway.record_codec import decode_request, encode_request
from services.gateway.request_stream import RequestStream
from services.gateway.running_call import Recipient, RunningCall
from services.gateway.span_attributes import request_attributes
from services.gateway.token_log import LoggedAnswer, TokenLogs
from services.rpc.status import RpcError
from services.state.store import StateUnavailable
from services.state.token_log import LogKey
from services.telemetry.tracing import RequestSpan

_RETRY_AFTER_SECONDS = 1.0
"""What a client is told to wait while nobody knows what was answered."""


class Answers:
    """The calls of this gateway that stream.

    Args:
        logs: Where answers are noted; None: nowhere, and no request can be resumed.
    """

    def __init__(self, gateway: Gateway, backends: Backends, logs: TokenLogs | None) -> None:
        self._gateway = gateway
        self._backends = backends
        self._logs = logs
        self._running: dict[LogKey, RunningCall] = {}

    async def begin(
        self, request: PreparedRequest, span: RequestSpan, recipient: Recipient, visit: Visit, meter: CallMeter
    ) -> None:
        """Serves a new request. Whatever ends this, the client's going away included, ends it at the KV manager.

        Raises:
            RpcError: it was refused or ended early.
        """
        key = self._key(request.tenant, request.request_id)
        if key in self._running:
            message = f"request_id: {request.request_id!r} is running already"
            raise RpcError(grpc.StatusCode.ALREADY_EXISTS, message, "REQUEST_EXISTS", "request_id")
        stream = self._backends.stream(request, span.context)
        with self._call(key, stream, recipient) as call:
            await visit.begin(request)
            meter.begun(request)
            if self._logs is not None:
                seconds = request.timeout_us / 1e6
                opening = encode_request(request, time.time() + seconds if seconds else None)
                stream.log = self._logs.open(key, opening, stream.sequences, _ender(call))
            await self._backends.submit(stream)
            generation = Generation(self._gateway, request, stream, on_tokens=meter.tokens)
            await self._answer(generation, request, span, call.write, visit, meter)

    async def resume(
        self,
        request_id: str,
        from_token: Sequence[int],
        span: RequestSpan,
        recipient: Recipient,
        visit: Visit,
        meter: CallMeter,
    ) -> None:
        """Goes on with a request from the tokens that its client has.

        Raises:
            RpcError: NOT_FOUND: the tenant has no such request, or had it too long ago; INVALID_ARGUMENT, OUT_OF_RANGE:
                there can be no such tokens; or it ended early.
        """
        key = self._key(visit.identity.tenant, request_id)
        known = await self._take_over(key)
        request = within_deadline(decode_request(known.opening, time.time()), recipient)
        _check_positions(from_token, request)
        stream = self._backends.stream(request, span.context)
        with self._call(key, stream, recipient) as call:
            stream.replay(known.updates)
            stream.submitted_before = True
            if self._logs is not None and not (known.end is not None and known.in_store):
                stream.log = self._logs.open(key, known.opening, stream.sequences, _ender(call), known)
            if known.end is not None:
                stream.end(known.end)
            else:
                await self._backends.submit(stream)

            async def write(response: bytes) -> None:
                await call.write(_as_resumed(response))

            meter.resumed()
            generation = Generation(self._gateway, request, stream, from_token, meter.tokens)
            await self._answer(generation, request, span, write, visit, meter)

    async def _take_over(self, key: LogKey) -> LoggedAnswer:
        try:
            known = await self._logs.take_over(key) if self._logs is not None else None
        except StateUnavailable as error:
            message = "the state store is away, so nobody knows what was answered"
            raise RpcError(
                grpc.StatusCode.UNAVAILABLE, message, "STATE_UNAVAILABLE", retry_after=_RETRY_AFTER_SECONDS
            ) from error
        if known is None:
            message = "request_id: there is no such request, or it was too long ago"
            raise RpcError(grpc.StatusCode.NOT_FOUND, message, "REQUEST_NOT_FOUND", "request_id")
        return known

    async def _answer(
        self,
        generation: Generation,
        request: PreparedRequest,
        span: RequestSpan,
        write: Callable[[bytes], Awaitable[None]],
        visit: Visit,
        meter: CallMeter,
    ) -> None:
        async for response in generation.responses():
            visit.count(generation.new_usage)
            if generation.over:
                span.end(request_attributes(request, generation))
                meter.answered(generation.usage, generation.finish_reasons, generation.times)
            await write(response)

    @contextmanager
    def _call(self, key: LogKey, stream: RequestStream, recipient: Recipient) -> Iterator[RunningCall]:
        call = self._running[key] = RunningCall(stream, recipient)
        try:
            yield call
        finally:
            if self._running.get(key) is call:
                del self._running[key]
            stream.close()
            if self._logs is not None and stream.log is not None:
                self._logs.close(stream.log)

    def _key(self, tenant: str, request_id: str) -> LogKey:
        """Models that share a state store share no names; no request id holds what is between."""
        return LogKey(tenant, f"{self._gateway.model_name}\0{request_id}")

    async def break_off(self) -> None:
        """Ends all calls so that their clients go on elsewhere, with everything noted that they were sent."""
        if self._logs is not None:
            with suppress(StateUnavailable):
                await self._logs.flush()
        for call in list(self._running.values()):
            message = "the gateway is shutting down; the stream can be resumed elsewhere"
            call.end(RpcError(grpc.StatusCode.UNAVAILABLE, message, "DRAINING"))


def within_deadline(request: PreparedRequest, recipient: Recipient) -> PreparedRequest:
    """The request with a time limit that is no longer than the call's own."""
    remaining = recipient.time_remaining()
    if remaining is None:
        return request
    remaining_us = max(1, int(remaining * 1e6))
    return replace(request, timeout_us=min(request.timeout_us or remaining_us, remaining_us))


def _ender(call: RunningCall) -> Callable[[], None]:
    error = RpcError(grpc.StatusCode.ABORTED, "the stream goes on elsewhere", "RESUMED_ELSEWHERE")
    return lambda: call.end(error)


def _check_positions(from_token: Sequence[int], request: PreparedRequest) -> None:
    if len(from_token) > request.kept or any(position < 0 for position in from_token):
        message = f"from_token: must be one position, from 0 on, for each of at most {request.kept} sequences"
        raise RpcError(grpc.StatusCode.INVALID_ARGUMENT, message, "INVALID_ARGUMENT", "from_token")


def _as_resumed(response: bytes) -> bytes:
    message = inference_pb2.ResumeResponse()
    message.response.MergeFromString(response)
    return message.SerializeToString()
