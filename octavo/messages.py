"""Requests from plain Python values."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from google.protobuf.duration_pb2 import Duration

from octavo.guides import take_guide
from octavo.v1 import common_pb2, inference_pb2

ScopeLike = str | inference_pb2.CacheScope
"""Who may reuse the keys and values of a prompt: "request", "app", "tenant" or "shared:NAME"."""


@dataclass(frozen=True)
class Segment:
    """A part of a prompt with a cache scope of its own.

    Attributes:
        content: Text, a message (``{"role": ..., "content": ...}``) or token ids; the same in all parts of a prompt.
        cache_scope: None: the request's.
    """

    content: str | Mapping[str, str] | Iterable[int]
    cache_scope: ScopeLike | None = None


PromptLike = (
    str
    | Iterable[Mapping[str, str]]
    | Iterable[int]
    | Iterable[Segment | str | Mapping[str, str]]
    | inference_pb2.Prompt
)
"""Text; a conversation of {"role": ..., "content": ...} messages; token ids; or a list with a `Segment` in it, whose
other parts have the request's scope."""

_EARLY_STOPPING = {
    False: common_pb2.EARLY_STOPPING_HEURISTIC,
    True: common_pb2.EARLY_STOPPING_FIRST,
    "heuristic": common_pb2.EARLY_STOPPING_HEURISTIC,
    "first": common_pb2.EARLY_STOPPING_FIRST,
    "never": common_pb2.EARLY_STOPPING_NEVER,
}


def as_prompt(prompt: PromptLike) -> inference_pb2.Prompt:
    """Text, messages, token ids or segments as a message.

    Raises:
        TypeError: It is none of them.
        ValueError: A segment's scope is none.
    """
    if isinstance(prompt, inference_pb2.Prompt):
        return prompt
    if isinstance(prompt, str):
        return inference_pb2.Prompt(text=prompt)
    items: list[Any] = list(prompt)
    if any(isinstance(item, Segment) for item in items):
        segments = [_as_segment(item if isinstance(item, Segment) else Segment(item)) for item in items]
        return inference_pb2.Prompt(segmented=inference_pb2.SegmentedPrompt(segments=segments))
    if items and all(isinstance(item, Mapping) for item in items):
        messages = [inference_pb2.ChatMessage(**message) for message in items]
        return inference_pb2.Prompt(chat=inference_pb2.ChatPrompt(messages=messages))
    return inference_pb2.Prompt(tokens=inference_pb2.TokenPrompt(token_ids=items))


def _as_segment(segment: Segment) -> inference_pb2.Segment:
    scope, content = as_scope(segment.cache_scope), segment.content
    if isinstance(content, str):
        return inference_pb2.Segment(text=content, cache_scope=scope)
    if isinstance(content, Mapping):
        return inference_pb2.Segment(message=inference_pb2.ChatMessage(**content), cache_scope=scope)
    return inference_pb2.Segment(tokens=inference_pb2.TokenPrompt(token_ids=content), cache_scope=scope)


def as_scope(scope: ScopeLike | None) -> inference_pb2.CacheScope | None:
    """A scope's name as a message.

    Raises:
        ValueError: No scope is called so.
    """
    if scope is None or isinstance(scope, inference_pb2.CacheScope):
        return scope
    kind, colon, namespace = scope.partition(":")
    if kind == "shared" and colon:
        return inference_pb2.CacheScope(shared=namespace)
    if scope == "request":
        return inference_pb2.CacheScope(request=inference_pb2.RequestScope())
    if scope == "app":
        return inference_pb2.CacheScope(app=inference_pb2.AppScope())
    if scope == "tenant":
        return inference_pb2.CacheScope(tenant=inference_pb2.TenantScope())
    raise ValueError(f"cache_scope must be request, app, tenant or shared:NAME, not {scope!r}")


def generate_request(
    prompt: PromptLike,
    model: str = "",
    timeout: float | None = None,
    request_id: str = "",
    sampling: Mapping[str, Any] | None = None,
    *,
    priority: int = 0,
    cache_scope: ScopeLike | None = None,
    report_progress: bool = False,
    response_interval: float | None = None,
) -> inference_pb2.GenerateRequest:
    """The message that `Client.generate` sends; absent sampling parameters (None) keep the server's defaults.

    Raises:
        TypeError: A JSON schema or a choice is no such thing.
        ValueError: No such sampling parameter, scope or way of stopping; or several guides.
    """
    return inference_pb2.GenerateRequest(
        model=model,
        prompt=as_prompt(prompt),
        sampling=_as_sampling(sampling or {}),
        request_id=request_id,
        timeout=as_duration(timeout),
        priority=priority,
        cache_scope=as_scope(cache_scope),
        report_progress=report_progress,
        response_interval=as_duration(response_interval),
    )


def pin_request(
    prompt: PromptLike,
    ttl: float | timedelta,
    model: str = "",
    cache_scope: ScopeLike | None = None,
    timeout: float | None = None,
) -> inference_pb2.PinPrefixRequest:
    """The message that `Client.pin` sends.

    Raises:
        ValueError: No such scope.
    """
    return inference_pb2.PinPrefixRequest(
        model=model,
        prompt=as_prompt(prompt),
        cache_scope=as_scope(cache_scope),
        ttl=as_duration(ttl.total_seconds() if isinstance(ttl, timedelta) else ttl),
        timeout=as_duration(timeout),
    )


def _as_sampling(values: Mapping[str, Any]) -> common_pb2.SamplingParams:
    chosen = {name: value for name, value in values.items() if value is not None}
    ending = chosen.get("early_stopping")
    if isinstance(ending, (bool, str)):
        if ending not in _EARLY_STOPPING:
            raise ValueError(f"early_stopping must be True, False, heuristic, first or never, not {ending!r}")
        chosen["early_stopping"] = _EARLY_STOPPING[ending]
    guide = take_guide(chosen)
    return common_pb2.SamplingParams(guide=guide, **chosen)


def as_duration(seconds: float | None) -> Duration | None:
    """Seconds as a message; None stays absent."""
    if seconds is None:
        return None
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration
