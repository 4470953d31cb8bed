"""A port for Prometheus alone. Whoever reaches it may read it: it belongs on an inner network."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Generator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from services.config import ServiceConfig, join_address
from services.ports import bind
from services.telemetry.metrics import Exposition

log = logging.getLogger(__name__)


class MetricsServer:
    """Answers ``GET /metrics``. Belongs to the event loop that starts it.

    Args:
        config: Where it listens; it doesn't, where `metrics_port` is absent.
        exposition: What it shows.
    """

    def __init__(self, config: ServiceConfig, exposition: Exposition) -> None:
        self._host = config.metrics_host
        self._port = config.metrics_port
        self._exposition = exposition
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Binds and listens.

        Raises:
            ConfigError: the port is in use, or the host is not this machine's.
        """
        if self._port is None:
            return
        held = bind(self._host, self._port)
        app = Starlette(routes=[Route("/metrics", metrics_endpoint(self._exposition))])
        settings = uvicorn.Config(
            app, lifespan="off", log_config=None, access_log=False, log_level="warning", ws="none"
        )
        self._server = _Server(settings)
        self._serving = asyncio.ensure_future(self._server.serve([held]))
        log.info("listening for Prometheus", extra={"address": join_address(self._host, held.getsockname()[1])})

    async def stop(self) -> None:
        """Answers nobody any more."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving


def metrics_endpoint(exposition: Exposition) -> Callable[[Request], Awaitable[Response]]:
    """What answers ``GET /metrics``."""

    async def answer(request: Request) -> Response:
        body, content_type = await exposition.render(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    return answer


class _Server(uvicorn.Server):
    """Signals are the process's business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield
