"""GenerationService: requests to the core, tokens through it, responses to clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from gateway.errors import RequestError
from gateway.gateway import Gateway
from gateway.prepared import ModelLimits, PreparedRequest
from gateway.scope import Identity
from octavo.v1 import common_pb2, inference_pb2
from services.gateway.admission import Admission
from services.gateway.answers import Answers, within_deadline
from services.gateway.backends import Backends
from services.gateway.call_span import CallSpan
from services.gateway.codec import core_error, decode_pin_request, decode_prompt, decode_request
from services.gateway.identity import Callers
from services.gateway.pinning import Pinning
from services.gateway.span_attributes import usage_attributes
from services.rpc.parsing import parse
from services.rpc.server import Context
from services.rpc.status import RpcError, abort
from services.telemetry.tracing import Tracing

SERVICE = inference_pb2.DESCRIPTOR.services_by_name["GenerationService"].full_name

LONG_REQUEST_BYTES = 16 * 1024
"""Requests from this size on are tokenized on a thread, so that they don't hold up others' streams."""

R = TypeVar("R")


class GenerationServicer:
    """The public service. Its methods take plain bytes: see `services.rpc.parsing`.

    Args:
        answers: the calls that stream.
        callers: tells who is calling.
        admission: lets requests in, and counts what they use.
        on_call: told of each call as it starts.
    """

    def __init__(
        self,
        gateway: Gateway,
        backends: Backends,
        answers: Answers,
        callers: Callers,
        admission: Admission,
        tracing: Tracing,
        on_call: Callable[[Context], None],
    ) -> None:
        self._gateway = gateway
        self._backends = backends
        self._answers = answers
        self._callers = callers
        self._admission = admission
        self._tracing = tracing
        self._on_call = on_call
        self._pinning = Pinning(backends)

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        """The service as grpc wants it."""
        methods = {
            "Generate": grpc.unary_stream_rpc_method_handler(self.generate),
            "Resume": grpc.unary_stream_rpc_method_handler(self.resume),
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
                await self._answers.begin(request, span, context, visit)
        except RpcError as error:
            await abort(context, error)

    def _identify(self, context: Context) -> Identity:
        return self._callers.identify(context.invocation_metadata() or ())

    async def _prepare(self, data: bytes, context: Context, identity: Identity) -> PreparedRequest:
        message = parse(inference_pb2.GenerateRequest, data)
        prepared = await self._in_core(
            data, lambda limits: self._gateway.prepare(decode_request(message), limits, identity)
        )
        return within_deadline(prepared, context)

    async def resume(self, data: bytes, context: Context) -> None:
        self._on_call(context)
        try:
            with self._span("chat", context) as span, self._admission.continued(self._identify(context)) as visit:
                message = parse(inference_pb2.ResumeRequest, data)
                await self._answers.resume(message.request_id, message.from_token, span, context, visit)
        except RpcError as error:
            await abort(context, error)

    # Pins

    async def pin_prefix(self, data: bytes, context: Context) -> inference_pb2.PinPrefixResponse:
        with self._span("pin", context) as span, self._admission.visit(self._identify(context)) as visit:
            message = parse(inference_pb2.PinPrefixRequest, data)
            prepared = await self._in_core(
                data, lambda limits: self._gateway.prepare_pin(decode_pin_request(message), limits, visit.identity)
            )
            await visit.begin(prepared)
            response = await self._pinning.pin(within_deadline(prepared, context), span.context)
            visit.count(response.usage)
            span.end(usage_attributes(response.usage))
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


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _trace_context(context: Context) -> common_pb2.TraceContext | None:
    """What the client's metadata says about the trace that the call belongs to."""
    metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
    if "traceparent" not in metadata:
        return None
    return common_pb2.TraceContext(traceparent=metadata["traceparent"], tracestate=metadata.get("tracestate", ""))
