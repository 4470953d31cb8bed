"""The limits of a request's fields. Every function raises InvalidArgument naming the field, or returns."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.errors import InvalidArgument
from gateway.prepared import ModelLimits
from gateway.request import ChatMessage, ChatPrompt, Prompt, SamplingParams, SegmentedPrompt, TextPrompt

MAX_REQUEST_ID_LENGTH = 128
MAX_SEGMENTS = 1024
MAX_PRIORITY = 100
# Seconds; the longest google.protobuf.Duration.
MAX_TIMEOUT = 315_576_000_000
MAX_RESPONSE_INTERVAL = 60
MIN_TTL = 1
MAX_TTL = 30 * 24 * 60 * 60


def check_length(prompt_field: str, prompt_tokens: int, sampling: SamplingParams, limits: ModelLimits) -> None:
    """Checks that the prompt leaves room for an answer, and for as many tokens as the request wants."""
    longest = limits.max_model_len
    if prompt_tokens >= longest:
        raise InvalidArgument(
            prompt_field, f"has {prompt_tokens} tokens; prompt and answer together may have {longest}"
        )
    for name in ("max_tokens", "min_tokens"):
        wanted = getattr(sampling, name)
        if wanted is not None and prompt_tokens + wanted > longest:
            raise InvalidArgument(
                f"sampling.{name}",
                f"{wanted} and the prompt's {prompt_tokens} tokens exceed the {longest} that the model takes; "
                f"at most {longest - prompt_tokens} fit",
            )


def check_prompt(prompt: Prompt) -> None:
    """Checks that a prompt holds something, its messages a role each, and that its segments are of one kind."""
    field = prompt_field(prompt)
    if isinstance(prompt, SegmentedPrompt):
        _check_segments(prompt, field)
    elif isinstance(prompt, TextPrompt):
        require(bool(prompt.text), field, "must not be empty")
    elif isinstance(prompt, ChatPrompt):
        require(bool(prompt.messages), f"{field}.messages", "must not be empty")
        for index, message in enumerate(prompt.messages):
            require(bool(message.role), f"{field}.messages[{index}].role", "must not be empty")
    else:
        require(bool(prompt.token_ids), f"{field}.token_ids", "must not be empty")


def _check_segments(prompt: SegmentedPrompt, field: str) -> None:
    segments = prompt.segments
    require(bool(segments), f"{field}.segments", "must not be empty")
    require(len(segments) <= MAX_SEGMENTS, f"{field}.segments", f"must be at most {MAX_SEGMENTS}, are {len(segments)}")
    kind = type(segments[0].content)
    for index, segment in enumerate(segments):
        require(segment.content is not None, segment_field(index), "must hold a text, a message or token ids")
        require(type(segment.content) is kind, segment_field(index), "must be of the same kind as the first segment")
        if isinstance(segment.content, ChatMessage):
            require(bool(segment.content.role), f"{segment_field(index)}.message.role", "must not be empty")
    require(any(segment.size for segment in segments), field, "must not be empty")


def prompt_field(prompt: Prompt) -> str:
    """Which field of the request holds the prompt."""
    if isinstance(prompt, SegmentedPrompt):
        return "prompt.segmented"
    if isinstance(prompt, TextPrompt):
        return "prompt.text"
    return "prompt.chat" if isinstance(prompt, ChatPrompt) else "prompt.tokens"


def segment_field(index: int) -> str:
    """Which field of the request holds a segment."""
    return f"prompt.segmented.segments[{index}]"


def check_token_ids(token_ids: Sequence[int], field: str, vocab_size: int) -> None:
    """Checks that every id is one of the model's."""
    if not token_ids or (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        return
    for index, token_id in enumerate(token_ids):
        require(
            0 <= token_id < vocab_size,
            f"{field}[{index}]",
            f"{token_id} is not a token of the model; ids go from 0 to {vocab_size - 1}",
        )


def check_request_id(request_id: str) -> None:
    """Checks an id chosen by the client."""
    require(
        len(request_id) <= MAX_REQUEST_ID_LENGTH,
        "request_id",
        f"must have at most {MAX_REQUEST_ID_LENGTH} characters, has {len(request_id)}",
    )
    require(request_id.isprintable(), "request_id", "must have printable characters only")


def check_timeout(timeout: float | None) -> None:
    """Checks a time limit in seconds."""
    if timeout is not None:
        require(0 < timeout <= MAX_TIMEOUT, "timeout", f"must be more than 0 and at most {MAX_TIMEOUT} s")


def check_response_interval(interval: float | None) -> None:
    """Checks how often responses are to come, in seconds."""
    if interval is not None:
        limits = f"must be from 0 to {MAX_RESPONSE_INTERVAL} s"
        require(0 <= interval <= MAX_RESPONSE_INTERVAL, "response_interval", limits)


def check_priority(priority: int) -> None:
    """Checks a priority."""
    require(
        -MAX_PRIORITY <= priority <= MAX_PRIORITY,
        "priority",
        f"must be from {-MAX_PRIORITY} to {MAX_PRIORITY}, is {priority}",
    )


def check_ttl(ttl: float | None) -> None:
    """Checks for how many seconds something is to be kept."""
    if ttl is None:
        raise InvalidArgument("ttl", "is missing")
    require(MIN_TTL <= ttl <= MAX_TTL, "ttl", f"must be from {MIN_TTL} s to {MAX_TTL} s (30 days), is {ttl:g} s")


def require(holds: bool, field: str, message: str) -> None:
    """Raises InvalidArgument unless it holds."""
    if not holds:
        raise InvalidArgument(field, message)
