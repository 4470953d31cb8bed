"""GenerationService: requests to the core, tokens through it, responses to clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import Message

from gateway.scope import Identity
from octavo.v1 import inference_pb2
from services.gateway.calls import Calls, Metadata
from services.gateway.codec import decode_pin_request, decode_prompt, decode_request
from services.rpc.handlers import unary
from services.rpc.parsing import parse
from services.rpc.server import Context
from services.rpc.status import RpcError, abort

SERVICE = inference_pb2.DESCRIPTOR.services_by_name["GenerationService"].full_name


class GenerationServicer:
    """The public service. Its methods take plain bytes: see `services.rpc.parsing`.

    Args:
        calls: do what is asked.
        on_call: told of each call as it starts.
    """

    def __init__(self, calls: Calls, on_call: Callable[[Context], None]) -> None:
        self._calls = calls
        self._on_call = on_call

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
            return await method(data, context)

        return unary(handle)

    # Generating

    async def generate(self, data: bytes, context: Context) -> None:
        self._on_call(context)
        try:
            await self._calls.generate(
                lambda: decode_request(parse(inference_pb2.GenerateRequest, data)),
                len(data),
                metadata_of(context),
                context,
            )
        except RpcError as error:
            await abort(context, error)

    async def resume(self, data: bytes, context: Context) -> None:
        self._on_call(context)
        try:
            await self._calls.resume(lambda: parse(inference_pb2.ResumeRequest, data), metadata_of(context), context)
        except RpcError as error:
            await abort(context, error)

    # Pins

    async def pin_prefix(self, data: bytes, context: Context) -> inference_pb2.PinPrefixResponse:
        return await self._calls.pin(
            lambda: decode_pin_request(parse(inference_pb2.PinPrefixRequest, data)),
            len(data),
            metadata_of(context),
            context,
        )

    async def unpin_prefix(self, data: bytes, context: Context) -> inference_pb2.UnpinPrefixResponse:
        identity = self._identify(context)
        message = parse(inference_pb2.UnpinPrefixRequest, data)
        await self._calls.unpin(identity.tenant, message.pin_id)
        return inference_pb2.UnpinPrefixResponse()

    async def list_pins(self, data: bytes, context: Context) -> inference_pb2.ListPinsResponse:
        identity = self._identify(context)
        parse(inference_pb2.ListPinsRequest, data)
        return inference_pb2.ListPinsResponse(pins=await self._calls.pins(identity.tenant))

    # Questions about the model

    async def tokenize(self, data: bytes, context: Context) -> inference_pb2.TokenizeResponse:
        self._identify(context)
        message = parse(inference_pb2.TokenizeRequest, data)
        token_ids = await self._calls.tokenize(lambda: decode_prompt(message.prompt), len(data), message.model)
        return inference_pb2.TokenizeResponse(token_ids=token_ids, max_model_len=self._calls.model.max_model_len)

    async def list_models(self, data: bytes, context: Context) -> inference_pb2.ListModelsResponse:
        self._identify(context)
        parse(inference_pb2.ListModelsRequest, data)
        return inference_pb2.ListModelsResponse(models=[self._calls.model])

    def _identify(self, context: Context) -> Identity:
        return self._calls.identify(metadata_of(context))


def metadata_of(context: Context) -> Metadata:
    """What a call's metadata says."""
    return tuple(context.invocation_metadata() or ())
