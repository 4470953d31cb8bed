"""What happens to requests while the process ends."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.types import ASGIApp, Receive, Scope, Send

from services.gateway.http.errors import HttpError

RETRY_AFTER_SECONDS = 1.0


class Draining:
    """Lets those requests that ask for work (POST) end, and takes no new ones; who only looks (GET) may still do so.

    Attributes:
        app: sees the requests that are let in.
        announced: the end has been announced.
    """

    app: ASGIApp

    def __init__(self) -> None:
        self.announced = False
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def idle(self) -> None:
        """Returns when none runs that asks for work."""
        await self._idle.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            await self._work(scope, receive, send)
        else:
            await self._run(scope, receive, send)

    async def _work(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.announced:
            message = "the gateway is shutting down; ask another"
            error = HttpError(503, message, "draining", retry_after=RETRY_AFTER_SECONDS)
            await error.response()(scope, receive, send)
            return
        self._running += 1
        self._idle.clear()
        try:
            await self._run(scope, receive, send)
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        # What is cancelled is cut off by the server, which has closed the connection: there is nobody to tell.
        with suppress(asyncio.CancelledError):
            await self.app(scope, receive, send)
