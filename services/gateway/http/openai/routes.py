"""The paths of OpenAI's API, and those of vLLM's beside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from gateway.request import TextPrompt, TokenPrompt
from gateway.token_texts import TokenTexts
from services.gateway.calls import Calls
from services.gateway.http.errors import HttpError
from services.gateway.http.openai.answer import Answer
from services.gateway.http.openai.asks import Ask, chat_ask, completion_ask
from services.gateway.http.openai.bodies import ChatBody, CompletionBody, decode_body
from services.gateway.http.openai.explanation import Explain
from services.gateway.http.openai.shapes import ChatShape, CompletionShape, Head
from services.gateway.http.openai.tokens import TokenCalls
from services.gateway.http.requests import metadata_of

Body = TypeVar("Body")


def openai_routes(calls: Calls, explain: Explain) -> list[BaseRoute]:
    """Everything under ``/v1``, ``/tokenize`` and ``/detokenize``.

    Args:
        explain: Tells the life of a request that is over.
    """
    texts = TokenTexts(calls.gateway.tokenizer)
    api, tokens = OpenAI(calls, texts, explain, int(time.time())), TokenCalls(calls, texts)
    return [
        Route("/v1/models", api.models),
        Route("/v1/models/{model:path}", api.model),
        Route("/v1/completions", api.complete, methods=["POST"]),
        Route("/v1/chat/completions", api.chat, methods=["POST"]),
        Route("/tokenize", tokens.tokenize, methods=["POST"]),
        Route("/detokenize", tokens.detokenize, methods=["POST"]),
    ]


class OpenAI:
    """The calls.

    Args:
        texts: Of single tokens.
        explain: Tells the life of a request that is over.
        started: Unix time since which the model is served.
    """

    def __init__(self, calls: Calls, texts: TokenTexts, explain: Explain, started: int) -> None:
        self._calls = calls
        self._texts = texts
        self._explain = explain
        self._started = started

    async def models(self, request: Request) -> Response:
        """All models: one."""
        self._calls.identify(metadata_of(request))
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """One model."""
        self._calls.identify(metadata_of(request))
        name = request.path_params["model"]
        if name != self._calls.gateway.model_name:
            message = f"model: only {self._calls.gateway.model_name!r} is served here, not {name!r}"
            raise HttpError(404, message, "model_not_found", "model")
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        model = self._calls.model
        return {
            "id": model.name,
            "object": "model",
            "created": self._started,
            "owned_by": "octavo",
            "root": model.name,
            "parent": None,
            "max_model_len": model.max_model_len,
        }

    async def chat(self, request: Request) -> Response:
        """A chat completion."""
        ask, size = await self._ask(request, ChatBody, chat_ask)
        shape = ChatShape(self._texts, ask.logprobs, ask.token_ids)
        kind = "chat.completion.chunk" if ask.stream else "chat.completion"
        head = self._head(f"chatcmpl-{ask.request_id}", kind)
        return Answer(self._calls, ask, size, metadata_of(request), head, shape, self._explain)

    async def complete(self, request: Request) -> Response:
        """A completion, or several."""
        ask, size = await self._ask(request, CompletionBody, completion_ask)
        shape = CompletionShape(self._texts, ask.logprobs, ask.token_ids, self._echo(ask))
        head = self._head(f"cmpl-{ask.request_id}", "text_completion")
        return Answer(self._calls, ask, size, metadata_of(request), head, shape, self._explain)

    async def _ask(self, request: Request, kind: type[Body], decode: Callable[[Body, str], Ask]) -> tuple[Ask, int]:
        """What a request asks for, and how many bytes that took."""
        self._calls.identify(metadata_of(request))
        data = await request.body()
        return decode(decode_body(kind, data), request.headers.get("x-request-id", "")), len(data)

    def _head(self, answer_id: str, kind: str) -> Head:
        return Head(answer_id, kind, int(time.time()), self._calls.gateway.model_name)

    def _echo(self, ask: Ask) -> Callable[[int], str]:
        """What each choice begins with."""

        def echoed(choice: int) -> str:
            if not ask.echo:
                return ""
            prompt = ask.requests[choice // ask.num_choices].prompt
            if isinstance(prompt, TextPrompt):
                return prompt.text
            assert isinstance(prompt, TokenPrompt), "segments are not echoed"
            return self._calls.gateway.tokenizer.decode(prompt.token_ids, skip_special_tokens=False)

        return echoed
