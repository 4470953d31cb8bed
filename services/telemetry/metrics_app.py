"""The web server of the port for Prometheus."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from services.telemetry.metrics import Exposition


def metrics_route(exposition: Exposition) -> Route:
    """``GET /metrics``, for whoever asks."""

    async def answer(request: Request) -> Response:
        return await metrics_response(exposition, request)

    return Route("/metrics", answer)


async def metrics_response(exposition: Exposition, request: Request) -> Response:
    """The metrics, in the form that the request wants."""
    body, content_type = await exposition.render(request.headers.get("accept", ""))
    return Response(body, headers={"content-type": content_type})


class MetricsApp(uvicorn.Server):
    """Serves until `should_exit` is set. Signals are the process's business."""

    def __init__(self, exposition: Exposition) -> None:
        app = Starlette(routes=[metrics_route(exposition)])
        config = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            ws="none",
            timeout_graceful_shutdown=1,
        )
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield
