"""Any server with OpenAI's HTTP interface."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from services.cli.bench.target import Arrived, Model, RequestFailed, TargetUnusable, Usage
from services.cli.bench.workload import Request

_CONNECT_SECONDS = 10.0
_MESSAGE_LENGTH = 200
_LONGEST_LINE = 1 << 22
_QUICK = aiohttp.ClientTimeout(total=_CONNECT_SECONDS)
# Of a connection that can't be made, breaks, or takes too long to be made.
_FAILURES = (aiohttp.ClientError, OSError, asyncio.TimeoutError)
_DONE = b"[DONE]"


class OpenAITarget:
    """Streams completions or chats, over as many connections as there are requests at a time.

    Args:
        url: With the version, such as http://127.0.0.1:8000/v1.
        model: Empty: the first one.
        chat: Prompts are messages.
        fields: More fields of each request's body.
    """

    def __init__(
        self,
        url: str,
        model: str,
        fields: dict[str, Any],
        *,
        chat: bool = False,
        api_key: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._url = url.rstrip("/")
        self._model = model
        self._fields = fields
        self._chat = chat
        self._api_key = api_key
        self._tls = tls
        self._open_session: aiohttp.ClientSession | None = None

    async def model(self) -> Model:
        try:
            async with self._session.get(f"{self._url}/models", timeout=_QUICK) as response:
                status, body = response.status, await response.read()
        except _FAILURES as error:
            raise TargetUnusable(_describe(error)) from error
        if status >= 400:
            if self._model and status in (404, 405, 501):
                return Model(self._model)  # not every server lists its models
            raise TargetUnusable(f"{status}: {_message(body)}")
        try:
            names = [str(each["id"]) for each in json.loads(body)["data"]]
        except (ValueError, KeyError, TypeError) as error:
            raise TargetUnusable("/models gave no list of models; say --model NAME") from error
        if self._model not in ("", *names) or not (self._model or names):
            raise TargetUnusable(f"there is no model {self._model!r}, only {', '.join(names) or 'nothing'}")
        self._model = self._model or names[0]
        return Model(self._model)

    async def send(self, request: Request, arrived: Arrived) -> Usage:
        usage, complete = Usage(), False
        try:
            async with self._session.post(self._path, json=self._body(request)) as response:
                if response.status >= 400:
                    raise RequestFailed(f"HTTP {response.status}", _message(await response.read()))
                async for chunk in _events(response):
                    complete |= _is_end(chunk)
                    if _has_text(chunk):
                        arrived(1)
                    usage = _usage(chunk) or usage
        except _FAILURES as error:
            raise RequestFailed("connection", _describe(error)) from error
        if not complete:
            raise RequestFailed("broken off", "the stream ended without a finish reason")
        return usage

    @property
    def _session(self) -> aiohttp.ClientSession:
        """Made where it is first needed, as it belongs to the event loop there. Proxies that the environment names are
        not used: they would be measured, too."""
        if self._open_session is None:
            self._open_session = aiohttp.ClientSession(
                headers={} if self._api_key is None else {"authorization": f"Bearer {self._api_key}"},
                connector=aiohttp.TCPConnector(limit=0, ssl=True if self._tls is None else self._tls),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
                read_bufsize=_LONGEST_LINE,
            )
        return self._open_session

    @property
    def _path(self) -> str:
        return f"{self._url}/chat/completions" if self._chat else f"{self._url}/completions"

    def _body(self, request: Request) -> dict[str, Any]:
        body = {"model": self._model, "max_tokens": request.max_tokens, "stream": True, **self._fields}
        body["stream_options"] = {"include_usage": True}
        if self._chat:
            return body | {"messages": [{"role": "user", "content": request.prompt}]}
        return body | {"prompt": request.prompt}

    async def close(self) -> None:
        if self._open_session is not None:
            await self._open_session.close()


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The JSON of each server-sent event.

    Raises:
        RequestFailed: An event tells of an error, or is no JSON.
    """
    async for line in response.content:
        data = line[5:].strip()
        if not line.startswith(b"data:") or data == _DONE:
            continue  # to the end, so that the next request can have the connection
        try:
            chunk = json.loads(data)
        except ValueError as error:
            raise RequestFailed("not OpenAI's", f"an event is no JSON: {_text(data)!r}") from error
        if not isinstance(chunk, dict):
            raise RequestFailed("not OpenAI's", f"an event is no object: {_text(data)!r}")
        if chunk.get("error"):
            raise RequestFailed("error in the stream", _message(data))
        yield chunk


def _is_end(chunk: dict[str, Any]) -> bool:
    return any(choice.get("finish_reason") for choice in chunk.get("choices") or ())


def _has_text(chunk: dict[str, Any]) -> bool:
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or choice
        if delta.get("content") or delta.get("text") or delta.get("reasoning_content") or delta.get("reasoning"):
            return True
    return False


def _usage(chunk: dict[str, Any]) -> Usage | None:
    counted = chunk.get("usage")
    if not counted:
        return None
    details = counted.get("prompt_tokens_details") or {}
    return Usage(counted.get("prompt_tokens"), counted.get("completion_tokens"), details.get("cached_tokens"))


def _message(body: bytes) -> str:
    """What an error's body says to people."""
    text = _text(body)
    try:
        error = json.loads(text)
        error = error.get("error", error)
        text = error.get("message", text) if isinstance(error, dict) else str(error)
    except (ValueError, AttributeError):
        pass
    return " ".join(str(text).split())[:_MESSAGE_LENGTH]


def _text(data: bytes) -> str:
    return data[: 10 * _MESSAGE_LENGTH].decode("utf-8", "replace")


def _describe(error: Exception) -> str:
    return str(error) or type(error).__name__
