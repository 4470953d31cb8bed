"""GenerationService: requests to the core, tokens through it, responses to clients."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from gateway.errors import PositionGap, RequestError, TokenizerError
from gateway.gateway import Gateway
from gateway.loading import load_tokenizer
from gateway.request import ModelLimits, PreparedRequest
from octavo.v1 import common_pb2, inference_pb2
from services.config import ConfigError, GatewayConfig
from services.gateway.codec import core_error, decode_prompt, decode_request, encode_submission
from services.gateway.generation import Generation
from services.gateway.kvmanager_link import KVManagerLink
from services.process import run_service
from services.rpc.parsing import parse
from services.rpc.server import Context, RpcServer
from services.rpc.status import RpcError, abort
from services.telemetry.tracing import RequestSpan, Tracing, make_tracing

log = logging.getLogger(__name__)

SERVICE = inference_pb2.DESCRIPTOR.services_by_name["GenerationService"].full_name

LONG_REQUEST_BYTES = 16 * 1024
"""Requests from this size on are tokenized on a thread, so that they don't hold up others' streams."""

M = TypeVar("M", bound=Message)
R = TypeVar("R")


class GenerationServicer:
    """The public service. Its methods take plain bytes: see `services.rpc.parsing`.

    Args:
        on_call: told of each call as it starts.
    """

    def __init__(
        self, gateway: Gateway, link: KVManagerLink, tracing: Tracing, on_call: Callable[[Context], None]
    ) -> None:
        self._gateway = gateway
        self._link = link
        self._tracing = tracing
        self._on_call = on_call
        self._running: set[str] = set()

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        """The service as grpc wants it."""

        def unary(method: Callable[[bytes, Context], Awaitable[Message]]) -> grpc.RpcMethodHandler[Any, Any]:
            return grpc.unary_unary_rpc_method_handler(method, response_serializer=_serialize)

        methods = {
            "Generate": grpc.unary_stream_rpc_method_handler(self.generate, response_serializer=_serialize),
            "Tokenize": unary(self.tokenize),
            "ListModels": unary(self.list_models),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def generate(self, data: bytes, context: Context) -> AsyncIterator[inference_pb2.GenerateResponse]:
        self._on_call(context)
        attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": self._gateway.model_name}
        span = self._tracing.start_request(f"chat {self._gateway.model_name}", _trace_context(context), attributes)
        try:
            request = await self._prepare(data, context)
            async for response in self._generate(request, span):
                yield response
        except RpcError as error:
            span.end({"error.type": error.reason}, str(error))
            await abort(context, error)
        except (asyncio.CancelledError, GeneratorExit):
            span.end({"error.type": "CANCELLED"}, "the client went away")
            raise
        except (PositionGap, AssertionError) as fault:
            log.exception("a request broke off")
            span.end({"error.type": type(fault).__name__}, str(fault))
            await abort(
                context, RpcError(grpc.StatusCode.INTERNAL, "internal error; see the gateway's log", "INTERNAL")
            )

    async def _generate(
        self, request: PreparedRequest, span: RequestSpan
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        """Whatever ends this, the client's going away included, ends the request at the KV manager."""
        if request.request_id in self._running:
            message = f"request_id: {request.request_id!r} is running already"
            raise RpcError(grpc.StatusCode.ALREADY_EXISTS, message, "REQUEST_EXISTS", "request_id")
        stream = self._link.submit(lambda handle: encode_submission(request, handle, span.context))
        self._running.add(request.request_id)
        generation = Generation(self._gateway, request, stream)
        try:
            async for response in generation.responses():
                if response.HasField("usage"):
                    span.end(_span_attributes(request, generation))
                yield response
        finally:
            self._running.discard(request.request_id)
            stream.close()

    async def _prepare(self, data: bytes, context: Context) -> PreparedRequest:
        request = decode_request(parse(inference_pb2.GenerateRequest, data))
        prepared = await self._in_core(data, lambda limits: self._gateway.prepare(request, limits))
        remaining = context.time_remaining()
        if remaining is None:
            return prepared
        remaining_us = max(1, int(remaining * 1e6))
        return replace(prepared, timeout_us=min(prepared.timeout_us or remaining_us, remaining_us))

    async def tokenize(self, data: bytes, context: Context) -> inference_pb2.TokenizeResponse:
        self._on_call(context)
        try:
            message = parse(inference_pb2.TokenizeRequest, data)
            prompt = decode_prompt(message.prompt)
            token_ids = await self._in_core(
                data, lambda limits: self._gateway.tokenize(prompt, limits, model=message.model)
            )
            return inference_pb2.TokenizeResponse(token_ids=token_ids, max_model_len=self._link.model.max_model_len)
        except RpcError as error:
            await abort(context, error)
            raise

    async def list_models(self, data: bytes, context: Context) -> inference_pb2.ListModelsResponse:
        self._on_call(context)
        try:
            parse(inference_pb2.ListModelsRequest, data)
            model = inference_pb2.Model()
            model.CopyFrom(self._link.model)
        except RpcError as error:
            await abort(context, error)
            raise
        model.name = self._gateway.model_name
        return inference_pb2.ListModelsResponse(models=[model])

    async def _in_core(self, data: bytes, call: Callable[[ModelLimits], R]) -> R:
        """Runs a call of the core, and translates what it refuses."""
        model = self._link.model
        limits = ModelLimits(model.max_model_len, model.vocab_size)
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


def _span_attributes(request: PreparedRequest, generation: Generation) -> dict[str, str | int | list[str]]:
    """GenAI semantic conventions; the usage under its present and its former names."""
    return {
        "gen_ai.response.id": request.request_id,
        "gen_ai.response.model": request.model,
        "gen_ai.response.finish_reasons": generation.finish_reasons,
        "gen_ai.usage.input_tokens": len(request.prompt_token_ids),
        "gen_ai.usage.output_tokens": generation.completion_tokens,
        "gen_ai.usage.prompt_tokens": len(request.prompt_token_ids),
        "gen_ai.usage.completion_tokens": generation.completion_tokens,
        "octavo.cached_tokens": generation.cached_tokens,
    }


class GatewayService:
    """The process: load the tokenizer, attach to the KV manager, serve clients, drain."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._tracing = make_tracing("octavo-gateway", config.otlp_endpoint)
        self._server = RpcServer(config, [SERVICE], config.max_message_bytes)
        self._changed = asyncio.Event()
        self._link = KVManagerLink(config.kvmanager, self._changed.set)

    async def start(self) -> None:
        try:
            tokenizer = await asyncio.to_thread(load_tokenizer, self._config.model)
            gateway = Gateway(tokenizer, self._config.model_name, now=datetime.now)
        except TokenizerError as error:
            raise ConfigError(str(error)) from error
        servicer = GenerationServicer(gateway, self._link, self._tracing, self._server.count)
        self._server.grpc.add_generic_rpc_handlers([servicer.handlers()])
        await self._server.start()

    async def run(self) -> None:
        await asyncio.gather(self._link.run(), self._report_health())

    async def _report_health(self) -> None:
        """SERVING while the way to an executor is open."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._server.set_serving(self._link.ready)

    async def stop(self) -> None:
        await self._server.announce_shutdown()
        await self._server.stop(self._config.drain_seconds)
        self._tracing.shutdown()


def run(config: GatewayConfig) -> None:
    """Serves until a signal.

    Raises:
        ConfigError: the tokenizer can't be loaded, or the port is in use.
    """
    run_service("gateway", config, lambda: GatewayService(config))
