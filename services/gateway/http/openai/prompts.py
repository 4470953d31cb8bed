"""Prompts, messages and cache scopes of bodies, as the core wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Protocol

from gateway.request import (
    ChatMessage,
    ChatPrompt,
    ChatRendering,
    Prompt,
    Segment,
    SegmentedPrompt,
    TextPrompt,
    TokenPrompt,
)
from gateway.scope import TENANT_SCOPE, CacheScope, ScopeLevel
from services.gateway.http.errors import HttpError
from services.gateway.http.openai.bodies import CompletionBody, ContentPart, Message, PromptSegment

MAX_PROMPTS = 1024
"""Of one completion."""

_SCOPES = {"request": CacheScope(ScopeLevel.REQUEST), "app": CacheScope(ScopeLevel.APP), "tenant": TENANT_SCOPE}
_SHARED = "shared:"


class RendersChat(Protocol):
    """A body that says how a conversation is rendered."""

    @property
    def add_generation_prompt(self) -> bool | None: ...

    @property
    def chat_template_kwargs(self) -> dict[str, Any] | None: ...


def decode_scope(scope: str | None, field: str = "cache_scope") -> CacheScope | None:
    """A cache scope, if one is given: ``request``, ``app``, ``tenant`` or ``shared:NAME``."""
    if scope is None:
        return None
    if scope.startswith(_SHARED):
        return CacheScope(ScopeLevel.SHARED, scope.removeprefix(_SHARED))
    if scope not in _SCOPES:
        _refuse(field, f"must be request, app, tenant or shared:NAME, is {scope!r}")
    return _SCOPES[scope]


def decode_prompts(body: CompletionBody) -> list[Prompt]:
    """A completion's prompts; there are several where it asks for several completions at once.

    Raises:
        HttpError: 400: there is none, or they are of several kinds.
    """
    add_special_tokens = body.add_special_tokens is not False
    if body.segments is not None:
        if body.prompt is not None:
            _refuse("segments", "can't be given beside prompt")
        segments = [_decode_segment(each, index, add_special_tokens) for index, each in enumerate(body.segments)]
        return [SegmentedPrompt(segments)]
    if body.prompt is None:
        _refuse("prompt", "is missing")
    if isinstance(body.prompt, str):
        return [TextPrompt(body.prompt, add_special_tokens)]
    if body.prompt and all(isinstance(each, int) for each in body.prompt):
        return [TokenPrompt([each for each in body.prompt if isinstance(each, int)])]
    if not 1 <= len(body.prompt) <= MAX_PROMPTS:
        _refuse("prompt", f"must be from 1 to {MAX_PROMPTS} prompts, are {len(body.prompt)}")
    return [_decode_one_of_several(each, index, add_special_tokens) for index, each in enumerate(body.prompt)]


def _decode_one_of_several(prompt: str | int | list[int], index: int, add_special_tokens: bool) -> Prompt:
    if isinstance(prompt, str):
        return TextPrompt(prompt, add_special_tokens)
    if isinstance(prompt, int):
        _refuse(f"prompt[{index}]", "is a token id among prompts")
    return TokenPrompt(prompt)


def _decode_segment(segment: PromptSegment, index: int, add_special_tokens: bool) -> Segment:
    field = f"segments[{index}]"
    scope = decode_scope(segment.cache_scope, f"{field}.cache_scope")
    if segment.text is not None and segment.token_ids is not None:
        _refuse(field, "must hold text or token_ids, not both")
    if segment.token_ids is not None:
        return Segment(TokenPrompt(segment.token_ids), scope)
    return Segment(None if segment.text is None else TextPrompt(segment.text, add_special_tokens), scope)


def decode_chat(messages: Sequence[Message], body: RendersChat) -> Prompt:
    """A conversation.

    Raises:
        HttpError: 400: a message holds what the model can't read.
    """
    arguments: Mapping[str, Any] = body.chat_template_kwargs or {}
    rendering = ChatRendering(body.add_generation_prompt is not False, arguments)
    decoded = [_decode_message(message, f"messages[{index}]") for index, message in enumerate(messages)]
    if all(message.cache_scope is None for message in messages):
        return ChatPrompt(decoded, rendering)
    scopes = [decode_scope(each.cache_scope, f"messages[{index}].cache_scope") for index, each in enumerate(messages)]
    return SegmentedPrompt([Segment(each, scope) for each, scope in zip(decoded, scopes, strict=True)], rendering)


def _decode_message(message: Message, field: str) -> ChatMessage:
    for name, value in (("tool_calls", message.tool_calls), ("function_call", message.function_call)):
        if value:
            _refuse(f"{field}.{name}", "calls of tools are not supported")
    return ChatMessage(message.role, _decode_content(message.content, f"{field}.content"))


def _decode_content(content: str | list[ContentPart] | None, field: str) -> str:
    """Parts are lines, as vLLM joins them for templates that know only texts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        if part.type != "text":
            _refuse(f"{field}[{index}].type", f"must be text, is {part.type!r}: the model reads nothing else")
        if part.text is None:
            _refuse(f"{field}[{index}].text", "is missing")
        texts.append(part.text)
    return "\n".join(texts)


def _refuse(field: str, message: str) -> NoReturn:
    raise HttpError(400, f"{field}: {message}", "invalid_argument", field)
