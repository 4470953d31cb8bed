"""Log probabilities in the two shapes that OpenAI's API has for them."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from gateway.token_texts import TokenTexts
from octavo.v1 import common_pb2, inference_pb2

LEAST = -9999.0
"""What stands for minus infinity, which JSON can't say."""


def chat_logprobs(response: inference_pb2.GenerateResponse, texts: TokenTexts) -> dict[str, Any]:
    """Of a response's tokens, as chat completions have it."""
    pairs = zip(response.token_ids, response.logprobs, strict=True)
    content = [_entry(token, each.logprob, texts) | {"top_logprobs": _top(each, texts)} for token, each in pairs]
    return {"content": content, "refusal": None}


def _top(logprobs: common_pb2.TokenLogprobs, texts: TokenTexts) -> list[dict[str, Any]]:
    pairs = zip(logprobs.top_token_ids, logprobs.top_logprobs, strict=True)
    return [_entry(token_id, logprob, texts) for token_id, logprob in pairs]


def _entry(token_id: int, logprob: float, texts: TokenTexts) -> dict[str, Any]:
    content = texts.bytes_of(token_id)
    return {"token": content.decode("utf-8", "replace"), "logprob": max(logprob, LEAST), "bytes": list(content)}


class CompletionLogprobs:
    """The same as completions have it, for one growing text.

    Args:
        offset: Characters of the choice's text before the first token.
    """

    def __init__(self, texts: TokenTexts, offset: int) -> None:
        self._texts = texts
        self._offset = offset
        # A token's text begins where the characters end that are whole before it.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token_ids: Sequence[int], logprobs: Sequence[common_pb2.TokenLogprobs]) -> dict[str, Any]:
        """Of the next tokens."""
        added: dict[str, Any] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
        for token_id, each in zip(token_ids, logprobs, strict=True):
            own = max(each.logprob, LEAST)
            top = {
                _name(self._texts.bytes_of(other)): max(logprob, LEAST)
                for other, logprob in zip(each.top_token_ids, each.top_logprobs, strict=True)
            }
            content = self._texts.bytes_of(token_id)
            name = _name(content)
            added["text_offset"].append(self._offset)
            added["token_logprobs"].append(own)
            added["tokens"].append(name)
            added["top_logprobs"].append(top | {name: own})
            self._offset += len(self._decoder.decode(content))
        return added


def _name(content: bytes) -> str:
    """What is no whole character is spelled out, so that two tokens never have one name for that reason."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)
