"""`/tokenize` and `/detokenize`, in vLLM's shapes."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.request import Prompt, TextPrompt
from gateway.token_texts import TokenTexts
from services.gateway.calls import Calls
from services.gateway.http.errors import HttpError
from services.gateway.http.openai.asks import refuse_set
from services.gateway.http.openai.bodies import DetokenizeBody, TokenizeBody, decode_body
from services.gateway.http.openai.field_names import FieldNames
from services.gateway.http.openai.prompts import decode_chat
from services.gateway.http.openai.shapes import encode
from services.gateway.http.requests import metadata_of
from services.rpc.status import RpcError

_NAMES = {
    "prompt": FieldNames((("prompt.text", "prompt"),)),
    "messages": FieldNames.of_chat("max_tokens", "response_format"),
    "tokens": FieldNames((("token_ids", "tokens"),)),
}


class TokenCalls:
    """Text to token ids and back.

    Args:
        texts: Of single tokens.
    """

    def __init__(self, calls: Calls, texts: TokenTexts) -> None:
        self._calls = calls
        self._texts = texts

    async def tokenize(self, request: Request) -> Response:
        """How many tokens a prompt has, and which."""
        self._calls.identify(metadata_of(request))
        data = await request.body()
        body = decode_body(TokenizeBody, data)
        prompt = _prompt(body)
        try:
            token_ids = await self._calls.tokenize(lambda: prompt, len(data), body.model or "")
        except RpcError as error:
            raise _NAMES["prompt" if body.messages is None else "messages"].error(error) from error
        model = self._calls.model
        shown: dict[str, Any] = {
            "count": len(token_ids),
            "max_model_len": model.max_model_len,
            "tokens": token_ids,
            "token_strs": [self._texts.text_of(each) for each in token_ids] if body.return_token_strs else None,
        }
        return Response(encode(shown), media_type="application/json")

    async def detokenize(self, request: Request) -> Response:
        """The text of tokens."""
        self._calls.identify(metadata_of(request))
        data = await request.body()
        body = decode_body(DetokenizeBody, data)
        try:
            text = await self._calls.detokenize(body.tokens, len(data), body.model or "")
        except RpcError as error:
            raise _NAMES["tokens"].error(error) from error
        return Response(encode({"prompt": text}), media_type="application/json")


def _prompt(body: TokenizeBody) -> Prompt:
    refuse_set(body, ("chat_template", "continue_final_message", "tools"))
    if (body.prompt is None) == (body.messages is None):
        raise HttpError(400, "prompt: one of prompt and messages must be given", "invalid_argument", "prompt")
    if body.messages is None:
        return TextPrompt(body.prompt or "", body.add_special_tokens is not False)
    refuse_set(body, ("add_special_tokens",))  # the template has written them
    return decode_chat(body.messages, body)
