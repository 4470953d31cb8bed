"""GenerationService: requests to the core, tokens through it, responses to clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from gateway.errors import RequestError
from gateway.gateway import Gateway
from gateway.prepared import ModelLimits, PreparedRequest
from gateway.scope import Identity
from octavo.v1 import common_pb2, inference_pb2
from services.gateway.admission import Admission, Visit
from services.gateway.backends import Backends
from services.gateway.call_span import CallSpan
from services.gateway.codec import core_error, decode_pin_request, decode_prompt, decode_request
from services.gateway.generation import Generation
from services.gateway.identity import Callers
from services.gateway.pinning import Pinning
from services.rpc.parsing import parse
from services.rpc.server import Context
from services.rpc.status import RpcError, abort
from services.telemetry.tracing import Attributes, RequestSpan, Tracing

SERVICE = inference_pb2.DESCRIPTOR.services_by_name["GenerationService"].full_name

LONG_REQUEST_BYTES = 16 * 1024
"""Requests from this size on are tokenized on a thread, so that they don't hold up others' streams."""

PREFIX_MATCH_ENDS = {
    number: name.removeprefix("PREFIX_MATCH_END_").lower() for name, number in common_pb2.PrefixMatchEnd.items()
}

R = TypeVar("R")


class GenerationServicer:
    """The public service. Its methods take plain bytes: see `services.rpc.parsing`.

    Args:
        callers: tells who is calling.
        admission: lets requests in, and counts what they use.
        on_call: told of each call as it starts.
    """

    def __init__(
        self,
        gateway: Gateway,
        backends: Backends,
        callers: Callers,
        admission: Admission,
        tracing: Tracing,
        on_call: Callable[[Context], None],
    ) -> None:
        self._gateway = gateway
        self._backends = backends
        self._callers = callers
        self._admission = admission
        self._tracing = tracing
        self._on_call = on_call
        self._pinning = Pinning(backends)
        self._running: set[tuple[str, str]] = set()

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        """The service as grpc wants it."""
        methods = {
            "Generate": grpc.unary_stream_rpc_method_handler(self.generate),
            "Tokenize": self._unary(self.tokenize),
            "ListModels": self._unary(self.list_models),
            "PinPrefix": self._unary(self.pin_prefix),
            "UnpinPrefix": self._unary(self.unpin_prefix),
            "ListPins": self._unary(self.list_pins),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _unary(self, method: Callable[[bytes, Context], Awaitable[Message]]) -> grpc.RpcMethodHandler[Any, Any]:
        async def handle(data: bytes, context: Context) -> Message:
            self._on_call(context)
            try:
                return await method(data, context)
            except RpcError as error:
                await abort(context, error)
                raise

        return grpc.unary_unary_rpc_method_handler(handle, response_serializer=_serialize)

    # Generating

    async def generate(self, data: bytes, context: Context) -> None:
        self._on_call(context)
        try:
            with self._span("chat", context) as span, self._admission.visit(self._identify(context)) as visit:
                request = await self._prepare(data, context, visit.identity)
                await self._generate(request, span, context, visit)
        except RpcError as error:
            await abort(context, error)

    def _identify(self, context: Context) -> Identity:
        return self._callers.identify(context.invocation_metadata() or ())

    async def _prepare(self, data: bytes, context: Context, identity: Identity) -> PreparedRequest:
        message = parse(inference_pb2.GenerateRequest, data)
        prepared = await self._in_core(
            data, lambda limits: self._gateway.prepare(decode_request(message), limits, identity)
        )
        return _within_deadline(prepared, context)

    async def _generate(self, request: PreparedRequest, span: RequestSpan, context: Context, visit: Visit) -> None:
        """Whatever ends this, the client's going away included, ends the request at the KV manager."""
        key = request.tenant, request.request_id
        if key in self._running:
            message = f"request_id: {request.request_id!r} is running already"
            raise RpcError(grpc.StatusCode.ALREADY_EXISTS, message, "REQUEST_EXISTS", "request_id")
        self._running.add(key)
        try:
            await visit.begin(request)
            await self._answer(request, span, context, visit)
        finally:
            self._running.discard(key)

    async def _answer(self, request: PreparedRequest, span: RequestSpan, context: Context, visit: Visit) -> None:
        stream = self._backends.stream(request, span.context)
        self._backends.submit(stream)
        generation = Generation(self._gateway, request, stream)
        try:
            async for response in generation.responses():
                visit.count(generation.usage)
                if generation.over:
                    span.end(_span_attributes(request, generation))
                await _write(context, response)
        finally:
            stream.close()

    # Pins

    async def pin_prefix(self, data: bytes, context: Context) -> inference_pb2.PinPrefixResponse:
        with self._span("pin", context) as span, self._admission.visit(self._identify(context)) as visit:
            message = parse(inference_pb2.PinPrefixRequest, data)
            prepared = await self._in_core(
                data, lambda limits: self._gateway.prepare_pin(decode_pin_request(message), limits, visit.identity)
            )
            await visit.begin(prepared)
            response = await self._pinning.pin(_within_deadline(prepared, context), span.context)
            visit.count(response.usage)
            span.end(_usage_attributes(response.usage))
            return response

    async def unpin_prefix(self, data: bytes, context: Context) -> inference_pb2.UnpinPrefixResponse:
        identity = self._identify(context)
        message = parse(inference_pb2.UnpinPrefixRequest, data)
        await self._pinning.unpin(identity.tenant, message.pin_id)
        return inference_pb2.UnpinPrefixResponse()

    async def list_pins(self, data: bytes, context: Context) -> inference_pb2.ListPinsResponse:
        identity = self._identify(context)
        parse(inference_pb2.ListPinsRequest, data)
        return inference_pb2.ListPinsResponse(pins=await self._pinning.pins(identity.tenant))

    def _span(self, operation: str, context: Context) -> CallSpan:
        model = self._gateway.model_name
        attributes = {"gen_ai.operation.name": operation, "gen_ai.request.model": model}
        return CallSpan(self._tracing.start_request(f"{operation} {model}", _trace_context(context), attributes))

    # Questions about the model

    async def tokenize(self, data: bytes, context: Context) -> inference_pb2.TokenizeResponse:
        self._identify(context)
        message = parse(inference_pb2.TokenizeRequest, data)
        token_ids = await self._in_core(
            data, lambda limits: self._gateway.tokenize(decode_prompt(message.prompt), limits, model=message.model)
        )
        return inference_pb2.TokenizeResponse(token_ids=token_ids, max_model_len=self._backends.model.max_model_len)

    async def list_models(self, data: bytes, context: Context) -> inference_pb2.ListModelsResponse:
        self._identify(context)
        parse(inference_pb2.ListModelsRequest, data)
        model = inference_pb2.Model()
        model.CopyFrom(self._backends.model)
        model.name = self._gateway.model_name
        return inference_pb2.ListModelsResponse(models=[model])

    async def _in_core(self, data: bytes, call: Callable[[ModelLimits], R]) -> R:
        """Runs a call of the core, and translates what it refuses."""
        model = self._backends.model
        limits = ModelLimits(model.max_model_len, model.vocab_size, model.block_size)
        try:
            if len(data) < LONG_REQUEST_BYTES:
                return call(limits)
            return await asyncio.to_thread(call, limits)
        except RequestError as error:
            raise core_error(error) from error


async def _write(context: Context, response: bytes) -> None:
    try:
        await context.write(response)
    except grpc.aio.InternalError as failure:
        # The call ended at this very moment: its client left, or its own deadline came. There is nobody to tell.
        raise asyncio.CancelledError from failure


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _within_deadline(request: PreparedRequest, context: Context) -> PreparedRequest:
    """The request with a time limit that is no longer than the call's own."""
    remaining = context.time_remaining()
    if remaining is None:
        return request
    remaining_us = max(1, int(remaining * 1e6))
    return replace(request, timeout_us=min(request.timeout_us or remaining_us, remaining_us))


def _trace_context(context: Context) -> common_pb2.TraceContext | None:
    """What the client's metadata says about the trace that the call belongs to."""
    metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
    if "traceparent" not in metadata:
        return None
    return common_pb2.TraceContext(traceparent=metadata["traceparent"], tracestate=metadata.get("tracestate", ""))


def _span_attributes(request: PreparedRequest, generation: Generation) -> Attributes:
    """GenAI semantic conventions."""
    return {
        "gen_ai.response.id": request.request_id,
        "gen_ai.response.model": request.model,
        "gen_ai.response.finish_reasons": generation.finish_reasons,
        **_usage_attributes(generation.usage),
    }


def _usage_attributes(usage: common_pb2.Usage) -> Attributes:
    """Token counts under their present and their former names."""
    return {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.prompt_tokens": usage.prompt_tokens,
        "gen_ai.usage.completion_tokens": usage.completion_tokens,
        "octavo.cached_tokens": usage.cached_tokens,
        "octavo.prefix_match_end": PREFIX_MATCH_ENDS.get(usage.prefix_match_end, "unspecified"),
    }
