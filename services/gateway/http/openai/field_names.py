"""Errors of the core name its own fields; clients know them by OpenAI's names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.gateway.http.errors import HttpError
from services.rpc.status import RpcError

_CHAT_PROMPT = (
    ("prompt.segmented.segments", "messages"),
    ("prompt.chat.messages", "messages"),
    ("prompt.segmented", "messages"),
    ("prompt.chat", "messages"),
    ("prompt", "messages"),
)
_WITHIN = ((".message.role", ".role"), (".tokens.token_ids", ".token_ids"))


@dataclass(frozen=True)
class FieldNames:
    """How one request calls the core's fields.

    Attributes:
        prefixes: Pairs of a field's beginning and what stands for it; the first that fits counts.
    """

    prefixes: Sequence[tuple[str, str]]

    @classmethod
    def of_chat(cls, max_tokens: str, guide: str) -> FieldNames:
        """Of a chat completion, whose limit and guide came in these fields."""
        return cls((*_CHAT_PROMPT, *_sampling(max_tokens, guide, "top_logprobs")))

    @classmethod
    def of_completion(cls, prompt: str, guide: str) -> FieldNames:
        """Of a completion, or of one of several: its prompt came in this field, and its guide in that."""
        prefixes = (
            ("prompt.segmented.segments", "segments"),
            ("prompt.segmented", "segments"),
            ("prompt.tokens.token_ids", prompt),
            ("prompt.tokens", prompt),
            ("prompt.text", prompt),
        )
        return cls((*prefixes, *_sampling("max_tokens", guide, "logprobs")))

    def error(self, error: RpcError) -> HttpError:
        """The same error in the client's words."""
        told = HttpError.of(error)
        if error.field:
            told.param = self._rename(error.field)
            start = f"{error.field}: "
            if error.message.startswith(start):
                told.message = f"{told.param}: {error.message.removeprefix(start)}"
        return told

    def _rename(self, field: str) -> str:
        for prefix, name in self.prefixes:
            if field == prefix or field.startswith((f"{prefix}.", f"{prefix}[")):
                renamed = name + field.removeprefix(prefix)
                for inner, outer in _WITHIN:
                    renamed = renamed.replace(inner, outer)
                return renamed
        return field.removeprefix("sampling.")


def _sampling(max_tokens: str, guide: str, logprobs: str) -> Sequence[tuple[str, str]]:
    return (("sampling.max_tokens", max_tokens), ("sampling.guide", guide), ("sampling.logprobs", logprobs))
