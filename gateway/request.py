"""What clients ask for, as they state it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from gateway.scope import CacheScope


class EarlyStopping(Enum):
    """When a beam search has found enough, as in ``octavo.v1.EarlyStopping``."""

    HEURISTIC = auto()
    FIRST = auto()
    NEVER = auto()


class GuideKind(Enum):
    """In which language a guide is written; the values are the names of the fields of ``octavo.v1.Guide``."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    GRAMMAR = "grammar"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True)
class Guide:
    """What an answer must look like, as in ``octavo.v1.Guide``.

    Attributes:
        kind: None: the client gave none, which is refused.
        text: The schema, as JSON, the regular expression, or the grammar.
        choices: Of a choice, in place of the text.
    """

    kind: GuideKind | None
    text: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen, as the client states it. None is a field left out.

    Fields, meanings and defaults are those of ``octavo.v1.SamplingParams``.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    n: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    seed: int | None = None
    logprobs: int | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    skip_special_tokens: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    best_of: int | None = None
    beam_width: int | None = None
    length_penalty: float | None = None
    early_stopping: EarlyStopping | None = None
    guide: Guide | None = None


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Plain text, tokenized as it is.

    Attributes:
        add_special_tokens: With the special tokens that the tokenizer adds. Of segments the first one's counts.
    """

    text: str
    add_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ChatRendering:
    """What a chat template is told beside the messages.

    Attributes:
        answer_follows: The text goes up to where the model's answer begins; else it ends with the last message.
        arguments: What this template in particular knows, by name.
    """

    answer_follows: bool = True
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation, rendered with the model's chat template.

    Attributes:
        rendering: How.
    """

    messages: Sequence[ChatMessage]
    rendering: ChatRendering = field(default_factory=ChatRendering)


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids, taken as they are."""

    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a prompt with a cache scope of its own.

    Attributes:
        content: Text, a message or token ids. None: the client gave none, which is refused.
        scope: None: the request's.
    """

    content: TextPrompt | ChatMessage | TokenPrompt | None
    scope: CacheScope | None = None

    @property
    def size(self) -> int:
        """Characters of a text, or token ids; a message is one."""
        if isinstance(self.content, TextPrompt):
            return len(self.content.text)
        return len(self.content.token_ids) if isinstance(self.content, TokenPrompt) else 1


@dataclass(frozen=True, slots=True)
class SegmentedPrompt:
    """Parts of one kind that are joined to a text, a conversation or token ids.

    Attributes:
        rendering: Of a conversation.
    """

    segments: Sequence[Segment]
    rendering: ChatRendering = field(default_factory=ChatRendering)


Prompt = TextPrompt | ChatPrompt | TokenPrompt | SegmentedPrompt


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a client asks for.

    Attributes:
        prompt: What to continue. None: the client gave none, which is refused.
        model: Empty: the only model that is served.
        timeout: Most seconds the request may take, queueing included. None: no limit.
        request_id: Empty: the gateway chooses one.
        priority: Higher goes first, where the backend's policy reads it.
        scope: Of the prompt, where a segment does not say it itself. None: `Identity.default_scope`.
        report_progress: Also say how much of the prompt has been computed.
        response_interval: Seconds of which tokens are sent together. None: as the gateway likes.
    """

    prompt: Prompt | None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    model: str = ""
    timeout: float | None = None
    request_id: str = ""
    priority: int = 0
    scope: CacheScope | None = None
    report_progress: bool = False
    response_interval: float | None = None


@dataclass(frozen=True, slots=True)
class PinRequest:
    """A client's wish to keep a prompt's keys and values resident.

    Attributes:
        prompt: None: the client gave none, which is refused.
        ttl: Seconds that it stays. None: the client gave none, which is refused.
        model: Empty: the only model that is served.
        timeout: Most seconds that computing it may take, queueing included. None: no limit.
        scope: Of the prompt, where a segment does not say it itself. None: `Identity.default_scope`.
    """

    prompt: Prompt | None
    ttl: float | None
    model: str = ""
    timeout: float | None = None
    scope: CacheScope | None = None
