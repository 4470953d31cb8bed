"""Renders a conversation with the model's chat template.

The environment is the one that templates on the Hugging Face hub are written for (transformers, "Chat templates":
sandboxed Jinja with trimmed blocks, loop controls, ``tojson``, ``raise_exception`` and ``strftime_now``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.errors import InvalidArgument, TokenizerError
from gateway.request import ChatMessage

FIELD = "prompt.chat"


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
        self._template: jinja2.Template | None = None
        if source is None:
            return
        try:
            self._template = _environment(now).from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TokenizerError(f"the chat template does not parse: line {error.lineno}: {error.message}") from error

    def render(self, messages: Sequence[ChatMessage]) -> str:
        """The conversation as text, up to where the model's answer begins.

        The text already holds the special tokens: it is encoded without adding any.

        Raises:
            InvalidArgument: The model has no template, or its template refuses this conversation.
        """
        if self._template is None:
            raise InvalidArgument(FIELD, "the model has no chat template; send prompt.text or prompt.tokens")
        try:
            return self._template.render(
                **self._special_tokens,
                messages=[{"role": message.role, "content": message.content} for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
            )
        except Exception as error:  # a template may raise anything, and it is always about this conversation
            raise InvalidArgument(FIELD, f"the model's chat template refuses the messages: {error}") from error


def _environment(now: Callable[[], datetime]) -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
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
