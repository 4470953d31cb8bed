"""MonitoringService: who looks, what they ask, and what they may see."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message

from octavo.v1 import monitoring_pb2
from services.gateway.monitoring.monitoring import Monitoring
from services.gateway.servicer import metadata_of
from services.gateway.viewers import Viewer, Viewers
from services.rpc.handlers import serialize, unary
from services.rpc.parsing import parse
from services.rpc.server import Context
from services.rpc.status import RpcError, abort

SERVICE = monitoring_pb2.DESCRIPTOR.services_by_name["MonitoringService"].full_name

M = TypeVar("M", bound=Message)
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class MonitoringServicer:
    """The public service. Its methods take plain bytes: see `services.rpc.parsing`.

    Its calls are not counted among those that a shutdown waits for: who looks would look for ever.
    """

    def __init__(self, monitoring: Monitoring, viewers: Viewers) -> None:
        self._monitoring = monitoring
        self._viewers = viewers

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        """The service as grpc wants it."""
        monitoring = self._monitoring
        methods = {
            "WatchStatus": self._stream(monitoring_pb2.WatchStatusRequest, monitoring.watch_status),
            "WatchBlocks": self._stream(monitoring_pb2.WatchBlocksRequest, monitoring.watch_blocks),
            "ListRequests": self._unary(monitoring_pb2.ListRequestsRequest, monitoring.list_requests),
            "ExplainRequest": self._unary(monitoring_pb2.ExplainRequestRequest, monitoring.explain),
            "GetPrefixTree": self._unary(monitoring_pb2.GetPrefixTreeRequest, monitoring.prefix_tree),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _unary(self, request_type: type[M], answer: Callable[[M, Viewer], Awaitable[Message]]) -> Handler:
        async def handle(data: bytes, context: Context) -> Message:
            viewer = self._viewers.identify(metadata_of(context))
            return await answer(parse(request_type, data), viewer)

        return unary(handle)

    def _stream(self, request_type: type[M], watch: Callable[[M, Viewer], AsyncIterator[Message]]) -> Handler:
        async def handle(data: bytes, context: Context) -> AsyncIterator[Message]:
            try:
                viewer = self._viewers.identify(metadata_of(context))
                async for message in watch(parse(request_type, data), viewer):
                    yield message
            except RpcError as error:
                await abort(context, error)

        return grpc.unary_stream_rpc_method_handler(handle, response_serializer=serialize)
