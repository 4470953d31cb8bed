"""Token counts of one call, over all its requests."""

from __future__ import annotations

from typing import Any

from octavo.v1 import common_pb2


class CallUsage:
    """Counts while the call runs, and is right once it is over."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cached_tokens = 0
        self._streamed: dict[int, int] = {}
        self._requests: dict[int, common_pb2.Usage] = {}

    def add_prompt(self, num_tokens: int) -> None:
        """One more request's prompt."""
        self.prompt_tokens += num_tokens

    def add_tokens(self, choice: int, num_tokens: int) -> None:
        """New tokens of a choice."""
        self._streamed[choice] = self._streamed.get(choice, 0) + num_tokens

    def add_request(self, index: int, usage: common_pb2.Usage) -> None:
        """A request is over."""
        self._requests[index] = usage
        self.completion_tokens += usage.completion_tokens
        self.cached_tokens += usage.cached_tokens

    def of_request(self, index: int) -> common_pb2.Usage:
        """Of a request that is over."""
        return self._requests[index]

    def shown(self) -> dict[str, Any]:
        """As OpenAI shows it at the end."""
        counts = _counts(self.prompt_tokens, self.completion_tokens)
        return counts | {"prompt_tokens_details": {"cached_tokens": self.cached_tokens}}

    def shown_so_far(self, choice: int) -> dict[str, Any]:
        """Of a choice while it grows, as vLLM shows it."""
        return _counts(self.prompt_tokens, self._streamed.get(choice, 0))


def _counts(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
