"""A real HTTP server with OpenAI's interface whose answers are known: it repeats the prompt, word by word."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

MODEL = "echo"


class ScriptedOpenAI:
    """Some words of a prompt have it fail, hang, or tell less than others.

    Attributes:
        bodies: Of the requests, in the order in which they came.
        headers: Of the last one.
    """

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: dict[str, str] = {}
        paths = ("/v1/completions", "/v1/chat/completions")
        routes = [Route(path, self._generate, methods=["POST"]) for path in paths]
        self.app = Starlette(routes=[*routes, Route("/v1/models", self._models)])

    @property
    def prompts(self) -> list[Any]:
        """What was asked, in the order in which it came."""
        return [_prompt_of(body) for body in self.bodies]

    async def _models(self, request: Request) -> Response:
        self.headers = dict(request.headers)
        return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def _generate(self, request: Request) -> Response:
        self.headers = dict(request.headers)
        body = await request.json()
        self.bodies.append(body)
        prompt = _prompt_of(body)
        words = prompt.split() if isinstance(prompt, str) else [str(token_id) for token_id in prompt]
        if "refuse" in words:
            error = {"message": "the queue is full", "type": "rate_limit_error", "code": None}
            return JSONResponse({"error": error}, 429)
        return StreamingResponse(_events(words, chat="messages" in body), media_type="text/event-stream")


def _prompt_of(body: dict[str, Any]) -> Any:
    return body["messages"][-1]["content"] if "messages" in body else body["prompt"]


async def _events(words: list[str], *, chat: bool) -> AsyncIterator[str]:
    if chat:
        yield _event([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
    if "forever" in words:
        yield _event([_choice("on", chat, None)])
        await asyncio.sleep(3600)
    if "fail" in words:
        yield f"data: {json.dumps({'error': {'message': 'no executor', 'code': 503}})}\n\n"
        return
    for number, word in enumerate(words):
        last = number == len(words) - 1
        if last and "break" in words:
            return
        yield ": a comment\n\n" + _event([_choice(f"{word} ", chat, "length" if last else None)])
    if "silent" not in words:
        # Twice as many tokens as responses.
        counted = {"prompt_tokens": len(words), "completion_tokens": 2 * len(words)}
        yield _event([], usage=counted | {"prompt_tokens_details": {"cached_tokens": 1}})
    yield "data: [DONE]\n\n"


def _choice(text: str, chat: bool, finish_reason: str | None) -> dict[str, Any]:
    content = {"delta": {"content": text}} if chat else {"text": text}
    return {"index": 0, "finish_reason": finish_reason, **content}


def _event(choices: list[dict[str, Any]], **more: Any) -> str:
    return f"data: {json.dumps({'id': 'x', 'model': MODEL, 'choices': choices, **more})}\n\n"


@contextmanager
def serving(scripted: ScriptedOpenAI, tls: tuple[Path, Path] | None = None) -> Iterator[str]:
    """Serves on loopback, and gives the base URL.

    Args:
        tls: Files with a certificate and its key.
    """
    config = uvicorn.Config(
        scripted.app,
        host="127.0.0.1",
        port=0,
        log_level="critical",
        timeout_graceful_shutdown=0,
        ssl_certfile=tls[0] if tls else None,
        ssl_keyfile=tls[1] if tls else None,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        thread.join(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}/v1"
    finally:
        server.should_exit = True
        thread.join(10)
