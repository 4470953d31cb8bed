"""What a request brings."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.calls import Metadata
from services.gateway.http.errors import HttpError


def metadata_of(request: Request) -> Metadata:
    """Its headers, as calls want them: names in lower case, each as often as it was given."""
    return request.headers.items()


class BodyLimit:
    """Refuses bodies that are too long, without reading them to their end.

    Args:
        app: sees the others.
        max_bytes: longest body taken.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._announced(scope) > self._max_bytes:
            await self._error().response()(scope, receive, send)
            return
        taken = 0

        async def receive_within_limit() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._max_bytes:
                raise self._error()
            return message

        await self._app(scope, receive_within_limit, send)

    def _announced(self, scope: Scope) -> int:
        lengths = [int(value) for name, value in scope["headers"] if name == b"content-length" and value.isdigit()]
        return max(lengths, default=0)

    def _error(self) -> HttpError:
        message = f"the request is longer than {self._max_bytes} bytes (max_message_bytes)"
        return HttpError(413, message, "request_too_long")
