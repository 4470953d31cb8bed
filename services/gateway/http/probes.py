"""What load balancers and people ask first: is it there, and what is it?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route


@dataclass(frozen=True)
class Status:
    """How the gateway is at the moment.

    Attributes:
        ready: the way to an executor is open.
        draining: it is about to end.
        state_available: the state store is there.
    """

    ready: bool
    draining: bool
    state_available: bool


def probe_routes(status: Callable[[], Status]) -> list[BaseRoute]:
    """`/health` and `/version`, for whoever reaches them."""

    async def health(request: Request) -> Response:
        now = status()
        state = "available" if now.state_available else "away"
        return JSONResponse({"status": _word(now), "state": state}, 200 if now.ready and not now.draining else 503)

    async def tell_version(request: Request) -> Response:
        return JSONResponse({"version": version("octavo")})

    return [Route("/health", health), Route("/version", tell_version)]


def _word(status: Status) -> str:
    if status.draining:
        return "draining"
    if not status.ready:
        return "not ready"
    return "ok" if status.state_available else "degraded"
