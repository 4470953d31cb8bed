"""The console's paths: the page for everybody, its data for whoever may see them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import grpc
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from octavo.v1 import monitoring_pb2
from services.gateway.http.console import event_stream, feeds
from services.gateway.http.console.assets import Assets
from services.gateway.http.console.request_json import encode_request, encode_timeline, encode_tree
from services.gateway.http.requests import metadata_of
from services.gateway.monitoring.monitoring import Monitoring
from services.gateway.viewers import Viewer, Viewers
from services.rpc.status import RpcError

MAX_NODES = 500
NUM_ENDED = 100


def console_routes(monitoring: Monitoring, viewers: Viewers) -> list[BaseRoute]:
    """`/console` and what is below it.

    Args:
        monitoring: where the data come from.
        viewers: whose share of them a caller sees.
    """
    data = _Data(monitoring, viewers)
    return [
        # Relative, so that it holds behind a proxy that serves the gateway under a path of its own.
        Route("/console", lambda request: RedirectResponse("console/")),
        Route("/console/api/status", data.status),
        Route("/console/api/blocks", data.blocks),
        Route("/console/api/requests", data.requests),
        Route("/console/api/requests/{request_id:path}", data.timeline),
        Route("/console/api/prefix-tree", data.prefix_tree),
        Route("/console/{path:path}", Assets().serve),
    ]


class _Data:
    """Raises RpcError, which is answered as everywhere on this port."""

    def __init__(self, monitoring: Monitoring, viewers: Viewers) -> None:
        self._monitoring = monitoring
        self._viewers = viewers

    async def status(self, request: Request) -> Response:
        viewer = self._viewer(request)
        return await self._stream(request, viewer, feeds.status_events(self._monitoring, viewer))

    async def blocks(self, request: Request) -> Response:
        viewer = self._viewer(request)
        return await self._stream(request, viewer, feeds.block_events(self._monitoring, viewer))

    async def requests(self, request: Request) -> Response:
        asked = monitoring_pb2.ListRequestsRequest(num_ended=_number(request, "ended", NUM_ENDED, 0, 1000))
        response = await self._monitoring.list_requests(asked, self._viewer(request))
        return _json({"requests": [encode_request(view) for view in response.requests]})

    async def timeline(self, request: Request) -> Response:
        asked = monitoring_pb2.ExplainRequestRequest(request_id=request.path_params["request_id"])
        response = await self._monitoring.explain(asked, self._viewer(request))
        return _json(encode_timeline(response.timeline))

    async def prefix_tree(self, request: Request) -> Response:
        asked = monitoring_pb2.GetPrefixTreeRequest(max_nodes=_number(request, "max_nodes", MAX_NODES, 1, 10_000))
        return _json(encode_tree(await self._monitoring.prefix_tree(asked, self._viewer(request))))

    def _viewer(self, request: Request) -> Viewer:
        return self._viewers.identify(metadata_of(request))

    async def _stream(self, request: Request, viewer: Viewer, events: AsyncGenerator[bytes, None]) -> Response:
        return await event_stream.stream(self._while_it_may(request, viewer, events))

    async def _while_it_may(
        self, request: Request, viewer: Viewer, events: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[bytes, None]:
        """The events for as long as the caller still is who it was: a key may be revoked meanwhile."""
        async with aclosing(events):
            async for event in events:
                if self._viewer(request) != viewer:
                    return
                yield event


def _json(content: Any) -> JSONResponse:
    return JSONResponse(content, headers={"cache-control": "no-store", "vary": "authorization"})


def _number(request: Request, name: str, default: int, least: int, most: int) -> int:
    """A number from the query.

    Raises:
        RpcError: INVALID_ARGUMENT: it is none, or out of bounds.
    """
    text = request.query_params.get(name)
    if text is None:
        return default
    if text.isascii() and text.isdigit() and least <= (number := int(text[:9])) <= most and len(text) < 9:
        return number
    message = f"{name}: must be a number from {least} to {most}"
    raise RpcError(grpc.StatusCode.INVALID_ARGUMENT, message, "BAD_NUMBER", name)
