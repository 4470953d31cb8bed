"""Renders a conversation with the model's chat template.

The environment is the one that templates on the Hugging Face hub are written for (transformers, "Chat templates":
sandboxed Jinja with trimmed blocks, loop controls, ``tojson``, ``raise_exception`` and ``strftime_now``).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.errors import InvalidArgument, TokenizerError
from gateway.request import ChatMessage, ChatRendering

FIELD = "prompt.chat"

_USUAL = ChatRendering()
_GIVEN_HERE = {"messages", "tools", "documents", "add_generation_prompt", "strftime_now"}


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: The template, or None for a model without one: then rendering is refused.
        special_tokens: What the template may call by name, for example ``bos_token``.
        now: The clock behind ``strftime_now``.

    Raises:
        TokenizerError: The template does not parse.
    """

    def __init__(self, source: str | None, special_tokens: Mapping[str, str], now: Callable[[], datetime]) -> None:
        self._special_tokens = dict(special_tokens)
        self._now = now
        self._template: jinja2.Template | None = None
        if source is None:
            return
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TokenizerError(f"the chat template does not parse: line {error.lineno}: {error.message}") from error

    def render(self, messages: Sequence[ChatMessage], field: str = FIELD, rendering: ChatRendering = _USUAL) -> str:
        """The conversation as text.

        The text already holds the special tokens: it is encoded without adding any.

        Args:
            messages: The conversation.
            field: Where the request holds it, for the error.
            rendering: How.

        Raises:
            InvalidArgument: The model has no template, or its template refuses this conversation.
        """
        return self.render_with_borders(messages, (), field, rendering)[0]

    def render_with_borders(
        self,
        messages: Sequence[ChatMessage],
        counts: Sequence[int],
        field: str = FIELD,
        rendering: ChatRendering = _USUAL,
    ) -> tuple[str, list[int]]:
        """The conversation as text, and how much of it certainly comes from its first messages alone.

        That is as far as the text agrees with the first messages rendered by themselves. So what a template writes
        behind a message belongs to that message, and what it writes ahead of one to the latter. Where a template
        refuses the first messages by themselves, nothing is certain.

        Args:
            messages: The conversation.
            counts: Numbers of first messages.
            field: Where the request holds the conversation, for the error.
            rendering: How.

        Returns:
            The text, and for each count a number of characters.

        Raises:
            InvalidArgument: As of `render`.
        """
        if self._template is None:
            raise InvalidArgument(field, "the model has no chat template; send text or token ids")
        if taken := (_GIVEN_HERE | self._special_tokens.keys()) & rendering.arguments.keys():
            raise InvalidArgument(field, f"{min(taken)} can't be an argument of the chat template: it is given already")
        # The same moment in all of them.
        now = functools.cache(self._now)
        try:
            text = self._render(messages, now, rendering)
        except Exception as error:  # a template may raise anything, and it is always about this conversation
            raise InvalidArgument(field, f"the model's chat template refuses the messages: {error}") from error
        alone = replace(rendering, answer_follows=False)
        return text, [self._agreement(text, messages[:count], now, alone) for count in counts]

    def _agreement(
        self, text: str, first_messages: Sequence[ChatMessage], now: Callable[[], datetime], rendering: ChatRendering
    ) -> int:
        try:
            alone = self._render(first_messages, now, rendering)
        except Exception:  # as above
            return 0
        pairs = enumerate(zip(text, alone, strict=False))
        return next((index for index, (ours, theirs) in pairs if ours != theirs), min(len(text), len(alone)))

    def _render(self, messages: Sequence[ChatMessage], now: Callable[[], datetime], rendering: ChatRendering) -> str:
        assert self._template is not None
        return self._template.render(
            **self._special_tokens,
            **rendering.arguments,
            messages=[{"role": message.role, "content": message.content} for message in messages],
            tools=None,
            documents=None,
            add_generation_prompt=rendering.answer_follows,
            strftime_now=lambda form: now().strftime(form),
        )


def _environment() -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own ``tojson`` escapes what is special in HTML; a prompt must not."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


class _GenerationBlock(Extension):
    """``{% generation %}``: marks the assistant's words for training; here its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 (declared by Jinja)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
