"""VllmEngine: what routers ask of an engine, answered by the gateway's calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message
from smg_grpc_proto.generated import common_pb2 as common
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm

from gateway.request import GenerationRequest, TokenPrompt
from services.gateway.backends import Backends
from services.gateway.calls import Calls
from services.gateway.kv_events import kv_events
from services.gateway.monitoring.monitoring import Monitoring
from services.gateway.servicer import metadata_of
from services.gateway.viewers import Viewers
from services.gateway.vllm.answers import Answer
from services.gateway.vllm.errors import in_their_names
from services.gateway.vllm.event_stream import EventStream
from services.gateway.vllm.loads import Loads
from services.gateway.vllm.model_info import model_info
from services.gateway.vllm.requests import decode_request
from services.gateway.vllm.running import RunningGeneration, RunningGenerations
from services.gateway.vllm.tokenizer_bundle import chunks, tokenizer_bundle
from services.rpc.handlers import serialize
from services.rpc.parsing import parse
from services.rpc.server import Context
from services.rpc.status import RpcError, abort

R = TypeVar("R")

_DESCRIPTOR = vllm.DESCRIPTOR.services_by_name["VllmEngine"]

SERVER_TYPE = "vllm-grpc"
"""The protocol's name for whoever speaks it."""


class VllmEngineServicer:
    """The service. Its methods take plain bytes: see `services.rpc.parsing`.

    Args:
        calls: do what is asked.
        backends: the groups behind this gateway.
        viewers: tell who may see what goes on.
        monitoring: knows how busy the stack is.
        on_call: told of each call that a shutdown is to wait for, as it starts.
    """

    def __init__(
        self,
        calls: Calls,
        backends: Backends,
        viewers: Viewers,
        monitoring: Monitoring,
        on_call: Callable[[Context], None],
    ) -> None:
        self._calls = calls
        self._backends = backends
        self._viewers = viewers
        self._monitoring = monitoring
        self._loads = Loads()
        self._on_call = on_call
        self._running = RunningGenerations()
        self._started = time.monotonic()
        self._bundle: asyncio.Future[bytes] | None = None

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        """The service as grpc wants it. Methods that are not known here say so."""
        unary = {
            "HealthCheck": self._health_check,
            "Abort": self._abort,
            "GetModelInfo": self._get_model_info,
            "GetServerInfo": self._get_server_info,
            "GetLoads": self._get_loads,
        }
        streams = {
            "Generate": self._generate,
            "GetTokenizer": self._get_tokenizer,
            "SubscribeKvEvents": self._subscribe_kv_events,
        }
        methods = {name: _unary(method) for name, method in unary.items()}
        methods |= {name: _stream(method) for name, method in streams.items()}
        missing = {method.name for method in _DESCRIPTOR.methods} - methods.keys()
        methods |= {name: _unary(_not_served(name)) for name in missing}
        return grpc.method_handlers_generic_handler(_DESCRIPTOR.full_name, methods)

    # Generating

    async def _generate(self, data: bytes, context: Context) -> None:
        self._on_call(context)
        metadata = metadata_of(context)
        identity = self._calls.identify(metadata)
        message = parse(vllm.GenerateRequest, data)
        if not message.request_id:
            raise RpcError(grpc.StatusCode.INVALID_ARGUMENT, "request_id: is missing", "INVALID_ARGUMENT", "request_id")
        answer = Answer(message, self._text_of(message))
        responses = self._calls.responses(lambda: self._decode(message, answer, context), len(data), metadata)
        generation = RunningGeneration(context)
        with self._running.add(identity.tenant, message.request_id, generation):
            await generation.send(responses, answer)

    def _decode(self, message: vllm.GenerateRequest, answer: Answer, context: Context) -> GenerationRequest:
        tokenizer, model = self._calls.gateway.tokenizer, self._calls.model
        request = decode_request(message, tokenizer.encode, model.max_model_len, context.time_remaining())
        if isinstance(request.prompt, TokenPrompt):
            answer.prompt_tokens = len(request.prompt.token_ids)
        return request

    def _text_of(self, message: vllm.GenerateRequest) -> Callable[[Sequence[int]], str]:
        skips = message.sampling_params.skip_special_tokens
        return lambda token_ids: self._calls.gateway.tokenizer.decode(token_ids, skip_special_tokens=skips)

    async def _abort(self, data: bytes, context: Context) -> vllm.AbortResponse:
        identity = self._calls.identify(metadata_of(context))
        self._running.abort(identity.tenant, parse(vllm.AbortRequest, data).request_ids)
        return vllm.AbortResponse()

    # What is served

    async def _health_check(self, data: bytes, context: Context) -> vllm.HealthCheckResponse:
        parse(vllm.HealthCheckRequest, data)
        ready = self._calls.ready
        return vllm.HealthCheckResponse(healthy=ready, message="serving" if ready else "no executor is connected")

    async def _get_model_info(self, data: bytes, context: Context) -> vllm.GetModelInfoResponse:
        self._calls.identify(metadata_of(context))
        parse(vllm.GetModelInfoRequest, data)
        return model_info(self._calls.model, self._calls.gateway.tokenizer)

    async def _get_server_info(self, data: bytes, context: Context) -> vllm.GetServerInfoResponse:
        identity = self._calls.identify(metadata_of(context))
        parse(vllm.GetServerInfoRequest, data)
        return vllm.GetServerInfoResponse(
            active_requests=self._running.count(identity.tenant),
            uptime_seconds=time.monotonic() - self._started,
            server_type=SERVER_TYPE,
            data_parallel_size=1,
            block_size=self._calls.model.block_size,
        )

    async def _get_tokenizer(self, data: bytes, context: Context) -> None:
        self._calls.identify(metadata_of(context))
        parse(common.GetTokenizerRequest, data)
        if self._bundle is None:
            making = asyncio.to_thread(tokenizer_bundle, self._calls.gateway.tokenizer)
            self._bundle = asyncio.ensure_future(making)
        for chunk in chunks(await asyncio.shield(self._bundle)):
            await context.write(chunk)

    # How it is used

    async def _get_loads(self, data: bytes, context: Context) -> vllm.GetLoadsResponse:
        viewer = self._viewers.identify(metadata_of(context))
        parse(vllm.GetLoadsRequest, data)
        status, block_size = await self._monitoring.status(viewer), self._calls.model.block_size
        if not viewer.is_operator:  # what is known of all together is not a tenant's to know
            return Loads().response(status, block_size, waiting_tokens=0)
        waiting_tokens = sum(link.tokens_to_prefill for link in self._backends.links)
        return self._loads.response(status, block_size, waiting_tokens)

    async def _subscribe_kv_events(self, data: bytes, context: Context) -> None:
        if not self._viewers.identify(metadata_of(context)).is_operator:
            message = "KV events tell what all tenants have asked; only the operator may know"
            raise RpcError(grpc.StatusCode.PERMISSION_DENIED, message, "OPERATOR_ONLY")
        if parse(common.SubscribeKvEventsRequest, data).start_sequence_number:
            message = "start_sequence_number: events that are over are not kept; 0 begins with what is cached now"
            raise RpcError(grpc.StatusCode.OUT_OF_RANGE, message, "NO_SUCH_EVENT", "start_sequence_number")
        # A subscriber takes one that is silent for lost.
        await context.send_initial_metadata(())
        stream = EventStream()
        await context.write(stream.start())
        async with aclosing(kv_events(self._backends.links)) as feed:
            async for told in feed:
                for batch in stream.add(told):
                    await context.write(batch)


def _unary(method: Callable[[bytes, Context], Awaitable[Message]]) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.unary_unary_rpc_method_handler(_with_status(method), response_serializer=serialize)


def _stream(method: Callable[[bytes, Context], Awaitable[None]]) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.unary_stream_rpc_method_handler(_with_status(method), response_serializer=serialize)


def _with_status(method: Callable[[bytes, Context], Awaitable[R]]) -> Callable[[bytes, Context], Awaitable[R]]:
    """The method, with its errors as the call's status."""

    async def handle(data: bytes, context: Context) -> R:
        try:
            return await method(data, context)
        except RpcError as error:
            await abort(context, in_their_names(error))
            raise
        except grpc.aio.InternalError as failure:
            # The call ended at this very moment: its client left, or its own deadline came. There is nobody to tell.
            raise asyncio.CancelledError from failure

    return handle


def _not_served(name: str) -> Callable[[bytes, Context], Awaitable[Message]]:
    async def handle(data: bytes, context: Context) -> Message:
        message = f"{_DESCRIPTOR.name}.{name} is not served here"
        raise RpcError(grpc.StatusCode.UNIMPLEMENTED, message, "UNIMPLEMENTED")

    return handle
