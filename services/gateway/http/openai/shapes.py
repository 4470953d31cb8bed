"""Answers in the shapes of OpenAI's API: whole ones, and chunks of streams.

A chunk of a stream is mostly the same bytes as the one before: only what is new is encoded each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from gateway.token_texts import TokenTexts
from octavo.v1 import common_pb2, inference_pb2
from services.gateway.http.openai.logprobs import CompletionLogprobs, chat_logprobs

encode = msgspec.json.Encoder().encode

REASONS = {
    common_pb2.FINISH_REASON_UNSPECIFIED: None,
    common_pb2.FINISH_REASON_STOP: "stop",
    common_pb2.FINISH_REASON_LENGTH: "length",
}


@dataclass(frozen=True)
class Head:
    """What every part of an answer begins with.

    Attributes:
        created: Unix time.
    """

    id: str
    object: str
    created: int
    model: str

    def shown(self) -> dict[str, Any]:
        return {"id": self.id, "object": self.object, "created": self.created, "model": self.model}


class Shape(Protocol):
    """One kind of choice. Choices are told apart by their number in the whole call."""

    def pieces(self, choice: int, response: inference_pb2.GenerateResponse) -> Sequence[bytes]:
        """New tokens as choices of chunks, as JSON; none where nothing is to be told yet."""

    def whole(self, choice: int, responses: Sequence[inference_pb2.GenerateResponse]) -> dict[str, Any]:
        """All tokens of a choice."""


@dataclass
class ChatShape:
    """Of chat completions.

    Args:
        logprobs: Are shown.
        token_ids: Are shown.
    """

    texts: TokenTexts
    logprobs: bool
    token_ids: bool
    _begun: set[int] = field(default_factory=set)

    def pieces(self, choice: int, response: inference_pb2.GenerateResponse) -> Sequence[bytes]:
        pieces = []
        if choice not in self._begun:
            self._begun.add(choice)
            delta = {"role": "assistant", "content": ""}
            pieces.append(encode({"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}))
        if self.logprobs or self.token_ids:
            if response.token_ids or response.text:
                pieces.append(encode(self._detailed(choice, response)))
        elif response.text:
            text = encode(response.text)
            pieces.append(b'{"index":%d,"delta":{"content":%b},"logprobs":null,"finish_reason":null}' % (choice, text))
        if response.finish_reason:
            reason = REASONS[response.finish_reason]
            pieces.append(encode({"index": choice, "delta": {}, "logprobs": None, "finish_reason": reason}))
        return pieces

    def _detailed(self, choice: int, response: inference_pb2.GenerateResponse) -> dict[str, Any]:
        shown: dict[str, Any] = {"index": choice, "delta": {"content": response.text}}
        shown["logprobs"] = chat_logprobs(response, self.texts) if self.logprobs else None
        shown["finish_reason"] = None
        return shown | ({"token_ids": list(response.token_ids)} if self.token_ids else {})

    def whole(self, choice: int, responses: Sequence[inference_pb2.GenerateResponse]) -> dict[str, Any]:
        logprobs = None
        if self.logprobs:
            parts = [chat_logprobs(each, self.texts)["content"] for each in responses]
            logprobs = {"content": [entry for part in parts for entry in part], "refusal": None}
        text = "".join(each.text for each in responses)
        shown = {"index": choice, "message": {"role": "assistant", "content": text, "refusal": None}}
        return shown | {"logprobs": logprobs} | _end(responses, self.token_ids)


@dataclass
class CompletionShape:
    """Of completions.

    Args:
        logprobs: Are shown.
        token_ids: Are shown.
        echoed: Gives the text that a choice begins with.
    """

    texts: TokenTexts
    logprobs: bool
    token_ids: bool
    echoed: Callable[[int], str]
    _begun: dict[int, CompletionLogprobs] = field(default_factory=dict)

    def pieces(self, choice: int, response: inference_pb2.GenerateResponse) -> Sequence[bytes]:
        echoed = "" if choice in self._begun else self.echoed(choice)
        logprobs = self._logprobs(choice)
        text = echoed + response.text
        if not (self.logprobs or self.token_ids):
            if not (text or response.finish_reason):
                return []
            plain = b'{"index":%d,"text":%b,"logprobs":null,"finish_reason":%b}'
            return [plain % (choice, encode(text), encode(REASONS[response.finish_reason]))]
        shown: dict[str, Any] = {"index": choice, "text": text, "logprobs": None}
        if self.logprobs:
            shown["logprobs"] = logprobs.add(response.token_ids, response.logprobs)
        return [encode(shown | _end([response], self.token_ids))]

    def whole(self, choice: int, responses: Sequence[inference_pb2.GenerateResponse]) -> dict[str, Any]:
        logprobs = None
        if self.logprobs:
            token_ids = [token_id for each in responses for token_id in each.token_ids]
            entries = [entry for each in responses for entry in each.logprobs]
            logprobs = self._logprobs(choice).add(token_ids, entries)
        text = self.echoed(choice) + "".join(each.text for each in responses)
        return {"index": choice, "text": text, "logprobs": logprobs} | _end(responses, self.token_ids)

    def _logprobs(self, choice: int) -> CompletionLogprobs:
        if choice not in self._begun:
            self._begun[choice] = CompletionLogprobs(self.texts, 0)
        return self._begun[choice]


def _end(responses: Sequence[inference_pb2.GenerateResponse], token_ids: bool) -> dict[str, Any]:
    end: dict[str, Any] = {"finish_reason": REASONS[responses[-1].finish_reason]}
    if token_ids:
        end["token_ids"] = [token_id for each in responses for token_id in each.token_ids]
    return end
