"""Handlers of methods that take plain bytes: see `services.rpc.parsing`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import Message

from services.rpc.server import Context
from services.rpc.status import RpcError, abort


def unary(method: Callable[[bytes, Context], Awaitable[Message]]) -> grpc.RpcMethodHandler[Any, Any]:
    """A method with one answer, whose RpcError becomes the call's status."""

    async def handle(data: bytes, context: Context) -> Message:
        try:
            return await method(data, context)
        except RpcError as error:
            await abort(context, error)
            raise

    return grpc.unary_unary_rpc_method_handler(handle, response_serializer=serialize)


def serialize(message: Message) -> bytes:
    """As grpc wants a response."""
    return message.SerializeToString()
