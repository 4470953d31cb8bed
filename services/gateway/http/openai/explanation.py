"""Why a request went as it did, in an answer: Octavo's own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from google.protobuf.duration_pb2 import Duration

from octavo.v1 import common_pb2, monitoring_pb2
from services.rpc.status import RpcError

Explain = Callable[[str, str], Awaitable[monitoring_pb2.Timeline]]
"""The life of a tenant's request. Raises RpcError where nobody knows it."""


class _Enum(Protocol):
    def Name(self, number: int) -> str: ...


async def explanation(request_id: str, usage: common_pb2.Usage, tenant: str, explain: Explain) -> dict[str, Any]:
    """Of a request that is over: how much of its prompt was found in the prefix cache, why no more, and its life."""
    match = {
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "end": _word(common_pb2.PrefixMatchEnd, usage.prefix_match_end) if usage.prefix_match_end else None,
    }
    try:
        timeline = _timeline(await explain(tenant, request_id))
    except RpcError:
        # The answer is there all the same: its KV manager may have been lost a moment ago.
        timeline = None
    return {"request_id": request_id, "prefix_match": match, "timeline": timeline}


def _timeline(timeline: monitoring_pb2.Timeline) -> dict[str, Any]:
    return {
        "executor": timeline.request.executor,
        "preemptions": timeline.request.preemptions,
        "decisions": [_decision(each) for each in timeline.decisions],
        "decisions_left_out": timeline.decisions_left_out,
    }


def _decision(decision: monitoring_pb2.Decision) -> dict[str, Any]:
    """Times are seconds since the request arrived."""
    return {
        "kind": _word(monitoring_pb2.DecisionKind, decision.kind),
        "at": _seconds(decision.at),
        "until": _seconds(decision.until) if decision.HasField("until") else None,
        "reason": decision.reason,
        "executor": decision.executor,
        "step": decision.step,
        "tokens": decision.tokens,
    }


def _seconds(duration: Duration) -> float:
    return duration.ToMicroseconds() / 1e6


def _word(enum: _Enum, number: int) -> str:
    """A value's name without the enum's: DECISION_KIND_FIRST_TOKEN is ``first_token``."""
    prefix = f"{enum.Name(0).removesuffix('UNSPECIFIED')}"
    return enum.Name(number).removeprefix(prefix).lower()
