"""Server-sent events, in an answer that begins with the first of them."""

from __future__ import annotations

from starlette.types import Send


class EventStream:
    """Until something is sent, another answer can be given.

    Attributes:
        begun: Something was sent.
    """

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.begun = False

    async def send(self, events: bytes) -> None:
        """Sends events. Takes as long as the client does to read what came before."""
        await self._begin()
        await self._send({"type": "http.response.body", "body": events, "more_body": True})

    async def end(self, events: bytes) -> None:
        """Sends the last ones."""
        await self._begin()
        await self._send({"type": "http.response.body", "body": events})

    async def _begin(self) -> None:
        if self.begun:
            return
        self.begun = True
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),  # proxies are to pass events on as they come
            (b"x-request-id", self._request_id.encode("latin-1", "replace")),
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
