"""Why a request went as it did, in an answer: Octavo's own."""

from __future__ import annotations

from typing import Any

from octavo.v1 import common_pb2

_ENDS = {number: name.removeprefix("PREFIX_MATCH_END_").lower() for name, number in common_pb2.PrefixMatchEnd.items()}


def explanation(request_id: str, usage: common_pb2.Usage) -> dict[str, Any]:
    """Of a request that is over: how much of its prompt was found in the prefix cache, and why no more."""
    match = {
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "end": _ENDS[usage.prefix_match_end] if usage.prefix_match_end else None,
    }
    return {"request_id": request_id, "prefix_match": match}
