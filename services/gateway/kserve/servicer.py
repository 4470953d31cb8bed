"""GRPCInferenceService: the calls of the open inference protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from importlib.metadata import version
from typing import Any

import grpc
from google.protobuf.message import Message

from octavo.kserve import inference_pb2
from services.gateway.calls import LONG_REQUEST_BYTES, Calls
from services.gateway.kserve.description import PLATFORM, model_config, model_metadata
from services.gateway.kserve.errors import not_found
from services.gateway.kserve.inference import Inference
from services.gateway.kserve.merged_stream import MergedStream
from services.gateway.kserve.requests import VERSION, InferRequest, check_version, decode_request
from services.gateway.servicer import metadata_of
from services.rpc.handlers import serialize, unary
from services.rpc.parsing import parse
from services.rpc.server import Context, RpcServer
from services.rpc.status import RpcError, abort

SERVICE = inference_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name


class InferenceServicer:
    """The service. Its methods take plain bytes: see `services.rpc.parsing`.

    Args:
        calls: do what is asked.
        server: waits for what runs, and says when it shuts down.
    """

    def __init__(self, calls: Calls, server: RpcServer) -> None:
        self._calls = calls
        self._server = server
        self._inference = Inference(calls)

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        """The service as grpc wants it."""
        methods = {
            "ServerLive": self._unary(self.server_live),
            "ServerReady": self._unary(self.server_ready),
            "ModelReady": self._unary(self.model_ready),
            "ServerMetadata": self._unary(self.server_metadata),
            "ModelMetadata": self._unary(self.model_metadata),
            "ModelConfig": self._unary(self.model_config),
            "ModelInfer": self._unary(self.model_infer),
            "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(
                self.model_stream_infer, response_serializer=serialize
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _unary(self, method: Callable[[bytes, Context], Awaitable[Message]]) -> grpc.RpcMethodHandler[Any, Any]:
        async def handle(data: bytes, context: Context) -> Message:
            self._server.count(context)
            return await method(data, context)

        return unary(handle)

    # Questions about the server: open to everybody, as probes are

    async def server_live(self, data: bytes, context: Context) -> inference_pb2.ServerLiveResponse:
        return inference_pb2.ServerLiveResponse(live=True)

    async def server_ready(self, data: bytes, context: Context) -> inference_pb2.ServerReadyResponse:
        return inference_pb2.ServerReadyResponse(ready=self._calls.ready)

    async def server_metadata(self, data: bytes, context: Context) -> inference_pb2.ServerMetadataResponse:
        return inference_pb2.ServerMetadataResponse(
            name=PLATFORM, version=version("octavo"), extensions=["model_configuration"]
        )

    # Questions about the model

    async def model_ready(self, data: bytes, context: Context) -> inference_pb2.ModelReadyResponse:
        self._calls.identify(metadata_of(context))
        message = parse(inference_pb2.ModelReadyRequest, data)
        is_here = message.name == self._calls.gateway.model_name and message.version in ("", VERSION)
        return inference_pb2.ModelReadyResponse(ready=is_here and self._calls.ready)

    async def model_metadata(self, data: bytes, context: Context) -> inference_pb2.ModelMetadataResponse:
        self._calls.identify(metadata_of(context))
        return model_metadata(self._model_name(parse(inference_pb2.ModelMetadataRequest, data)))

    async def model_config(self, data: bytes, context: Context) -> inference_pb2.ModelConfigResponse:
        self._calls.identify(metadata_of(context))
        return model_config(self._model_name(parse(inference_pb2.ModelConfigRequest, data)))

    def _model_name(self, asked: inference_pb2.ModelMetadataRequest | inference_pb2.ModelConfigRequest) -> str:
        model_name = self._calls.gateway.model_name
        if asked.name != model_name:
            raise not_found("name", f"only {model_name!r} is served here, not {asked.name!r}")
        check_version("version", asked.version)
        return model_name

    # Generating

    async def model_infer(self, data: bytes, context: Context) -> inference_pb2.ModelInferResponse:
        metadata = metadata_of(context)
        self._calls.identify(metadata)
        message = parse(inference_pb2.ModelInferRequest, data)
        request = await _decode(message, len(data), context, may_stream=False)
        return await self._inference.response(request, metadata)

    async def model_stream_infer(self, messages: AsyncIterator[bytes], context: Context) -> None:
        try:
            self._calls.identify(metadata_of(context))
            await self._converse(messages, context)
        except RpcError as error:
            await abort(context, error)
        except grpc.aio.InternalError as failure:
            # The call ended at this very moment: its client left, or its own deadline came. There is nobody to tell.
            raise asyncio.CancelledError from failure

    async def _converse(self, messages: AsyncIterator[bytes], context: Context) -> None:
        """Answers requests side by side, until the client has no more, or the server takes no more."""
        responses: MergedStream[inference_pb2.ModelStreamInferResponse] = MergedStream()
        reading = responses.start(self._read(messages, context, responses))
        draining = asyncio.ensure_future(self._server.draining.wait())
        draining.add_done_callback(lambda _: reading.cancel())
        try:
            async with aclosing(responses.items()) as items:
                async for response in items:
                    await context.write(response)
        finally:
            draining.cancel()
        if reading.cancelled():
            message = "the gateway is shutting down; what was asked is answered"
            raise RpcError(grpc.StatusCode.UNAVAILABLE, message, "DRAINING")

    async def _read(
        self,
        messages: AsyncIterator[bytes],
        context: Context,
        responses: MergedStream[inference_pb2.ModelStreamInferResponse],
    ) -> None:
        async for data in messages:
            responses.start(self._answer(data, context, responses))

    async def _answer(
        self, data: bytes, context: Context, responses: MergedStream[inference_pb2.ModelStreamInferResponse]
    ) -> None:
        message = inference_pb2.ModelInferRequest()
        with self._server.counting():
            try:
                message = parse(inference_pb2.ModelInferRequest, data)
                request = await _decode(message, len(data), context, may_stream=True)
                async with aclosing(self._inference.responses(request, metadata_of(context))) as answer:
                    async for response in answer:
                        await responses.put(inference_pb2.ModelStreamInferResponse(infer_response=response))
            except RpcError as error:
                await responses.put(_failure(error, message.id))


async def _decode(
    message: inference_pb2.ModelInferRequest, size: int, context: Context, *, may_stream: bool
) -> InferRequest:
    if size < LONG_REQUEST_BYTES:
        return decode_request(message, context.time_remaining(), may_stream)
    return await asyncio.to_thread(decode_request, message, context.time_remaining(), may_stream)


def _failure(error: RpcError, request_id: str) -> inference_pb2.ModelStreamInferResponse:
    return inference_pb2.ModelStreamInferResponse(
        error_message=f"{error.code.name}: {error.message}",
        infer_response=inference_pb2.ModelInferResponse(id=request_id),
    )
