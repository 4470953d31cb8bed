"""Real gRPC servers that stream one known answer and break as they are told: what a client must get over."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from octavo.v1 import common_pb2, inference_pb2, inference_pb2_grpc

LENGTHS = (7, 5)
"""Tokens of each sequence."""

TEXT_LAG = 2
"""A token's text comes with the token after the next, as where a stop string may have begun."""


@dataclass(frozen=True)
class Fault:
    """How a call ends early.

    Attributes:
        after: Responses that come before.
        code: The status.
        reason: Set where the server says it itself; a connection that breaks has none.
        retry_after: Seconds.
    """

    after: int = 0
    code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
    reason: str = ""
    retry_after: float | None = None


def token_id(sequence: int, position: int) -> int:
    return 100 * (sequence + 1) + position


def text_until(sequence: int, num_tokens: int) -> str:
    """What is certain with so many tokens."""
    certain = num_tokens if num_tokens == LENGTHS[sequence] else max(0, num_tokens - TEXT_LAG)
    return "".join(f"{'né'[sequence]}{position} " for position in range(certain))


def responses(
    request_id: str, from_token: list[int], chunk_length: int, n: int
) -> Iterator[inference_pb2.GenerateResponse]:
    """The answer from these positions on, so many tokens in a response, its sequences in turns."""
    done = [from_token[index] if index < len(from_token) else 0 for index in range(n)]
    ended = [count == length and from_token != [] for count, length in zip(done, LENGTHS, strict=False)]
    while not all(ended):
        for index in range(n):
            if ended[index]:
                continue
            end = min(done[index] + chunk_length, LENGTHS[index])
            ended[index] = end == LENGTHS[index]
            response = inference_pb2.GenerateResponse(
                request_id=request_id,
                sequence_index=index,
                position=done[index],
                token_ids=[token_id(index, position) for position in range(done[index], end)],
                text=text_until(index, end)[len(text_until(index, done[index])) :],
                logprobs=[common_pb2.TokenLogprobs(logprob=-float(position)) for position in range(done[index], end)],
            )
            if ended[index]:
                response.finish_reason = common_pb2.FINISH_REASON_STOP
            if all(ended):
                response.usage.completion_tokens = sum(LENGTHS[:n])
            done[index] = end
            yield response


@dataclass
class World:
    """What the servers share: the token log, and what goes wrong.

    Attributes:
        faults: Of the calls to come, in order; none of those after.
        chunk_lengths: Tokens in a response, of the calls to come; the last one of all that follow.
        remembers: Whether Resume knows a request.
        calls: What was sent, in order.
        served_by: The server's number, of each call.
    """

    faults: list[Fault | None] = field(default_factory=list)
    chunk_lengths: list[int] = field(default_factory=lambda: [1])
    remembers: bool = True
    calls: list[Message] = field(default_factory=list)
    served_by: list[int] = field(default_factory=list)
    known: dict[str, int] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    pins: list[str] = field(default_factory=list)

    def begin(self, call: Message, server: int, context: grpc.ServicerContext) -> Fault | None:
        """Notes a call down; ends it where its fault comes before everything."""
        self.calls.append(call)
        self.served_by.append(server)
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None and not fault.after:
            end(context, fault)
        return fault

    def chunk_length(self) -> int:
        return self.chunk_lengths.pop(0) if len(self.chunk_lengths) > 1 else self.chunk_lengths[0]


class ScriptedGateway(inference_pb2_grpc.GenerationServiceServicer):
    """One server of that world."""

    def __init__(self, number: int) -> None:
        self.world = World()
        self._number = number

    def Generate(
        self, request: inference_pb2.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[inference_pb2.GenerateResponse]:
        fault = self.world.begin(request, self._number, context)
        if request.request_id in self.world.running:
            end(context, Fault(code=grpc.StatusCode.ALREADY_EXISTS, reason="REQUEST_EXISTS"))
        n = request.sampling.n or 1
        self.world.known[request.request_id] = n
        yield from self._stream(responses(request.request_id, [], self.world.chunk_length(), n), fault, context)

    def Resume(
        self, request: inference_pb2.ResumeRequest, context: grpc.ServicerContext
    ) -> Iterator[inference_pb2.ResumeResponse]:
        fault = self.world.begin(request, self._number, context)
        n = self.world.known.get(request.request_id)
        if n is None or not self.world.remembers:
            end(context, Fault(code=grpc.StatusCode.NOT_FOUND, reason="REQUEST_UNKNOWN"))
        assert n is not None
        rest = responses(request.request_id, list(request.from_token), self.world.chunk_length(), n)
        for response in self._stream(rest, fault, context):
            yield inference_pb2.ResumeResponse(response=response)

    def _stream(
        self,
        answer: Iterator[inference_pb2.GenerateResponse],
        fault: Fault | None,
        context: grpc.ServicerContext,
    ) -> Iterator[inference_pb2.GenerateResponse]:
        for number, response in enumerate(answer):
            if fault is not None and number == fault.after:
                end(context, fault)
            yield response
        if fault is not None:
            end(context, fault)

    def Tokenize(
        self, request: inference_pb2.TokenizeRequest, context: grpc.ServicerContext
    ) -> inference_pb2.TokenizeResponse:
        self.world.begin(request, self._number, context)
        return inference_pb2.TokenizeResponse(token_ids=[1, 2])

    def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: grpc.ServicerContext
    ) -> inference_pb2.ListModelsResponse:
        self.world.begin(request, self._number, context)
        return inference_pb2.ListModelsResponse(models=[inference_pb2.Model(name="known")])

    def PinPrefix(
        self, request: inference_pb2.PinPrefixRequest, context: grpc.ServicerContext
    ) -> inference_pb2.PinPrefixResponse:
        self.world.begin(request, self._number, context)
        self.world.pins.append(f"pin{len(self.world.pins)}")
        return inference_pb2.PinPrefixResponse(pin=inference_pb2.Pin(pin_id=self.world.pins[-1]))

    def UnpinPrefix(
        self, request: inference_pb2.UnpinPrefixRequest, context: grpc.ServicerContext
    ) -> inference_pb2.UnpinPrefixResponse:
        there = request.pin_id in self.world.pins
        if there:
            self.world.pins.remove(request.pin_id)
        self.world.begin(request, self._number, context)
        if not there:
            end(context, Fault(code=grpc.StatusCode.NOT_FOUND, reason="PIN_UNKNOWN"))
        return inference_pb2.UnpinPrefixResponse()

    def ListPins(
        self, request: inference_pb2.ListPinsRequest, context: grpc.ServicerContext
    ) -> inference_pb2.ListPinsResponse:
        self.world.begin(request, self._number, context)
        return inference_pb2.ListPinsResponse(pins=[inference_pb2.Pin(pin_id=each) for each in self.world.pins])


def end(context: grpc.ServicerContext, fault: Fault) -> None:
    """Ends the call as Octavo's servers do, or as a broken connection does."""
    if not fault.reason:
        context.abort(fault.code, "Socket closed")
    details: list[Message] = [error_details_pb2.ErrorInfo(reason=fault.reason, domain="octavo")]
    if fault.retry_after is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(round(fault.retry_after * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    packed = [any_pb2.Any() for _ in details]
    for box, detail in zip(packed, details, strict=True):
        box.Pack(detail)
    status = status_pb2.Status(code=fault.code.value[0], message=fault.reason.lower(), details=packed)
    context.abort_with_status(rpc_status.to_status(status))


@contextmanager
def gateways(count: int) -> Iterator[dict[str, ScriptedGateway]]:
    """Serves on loopback; gives the servers by address. Their world may be changed at any time."""
    servers = [grpc.server(futures.ThreadPoolExecutor(max_workers=4)) for _ in range(count)]
    by_address = {}
    for number, server in enumerate(servers):
        gateway = ScriptedGateway(number)
        inference_pb2_grpc.add_GenerationServiceServicer_to_server(gateway, server)
        by_address[f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"] = gateway
        server.start()
    try:
        yield by_address
    finally:
        for server in servers:
            server.stop(0).wait()
