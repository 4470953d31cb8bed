"""The limits of a request's fields. Every function raises InvalidArgument naming the field, or returns."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.errors import InvalidArgument
from gateway.request import ChatPrompt, ModelLimits, Prompt, SamplingParams, TextPrompt

MAX_TEMPERATURE = 100.0
MAX_N = 64
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024
MAX_STOP_TOKEN_IDS = 64
MAX_REQUEST_ID_LENGTH = 128
# Seconds; the longest google.protobuf.Duration.
MAX_TIMEOUT = 315_576_000_000


def check_sampling(sampling: SamplingParams, limits: ModelLimits) -> None:
    """Checks every sampling parameter on its own."""
    _check_distribution(sampling)
    _check_counts(sampling)
    _check_stops(sampling, limits)


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
    """Checks that a prompt holds something, and a conversation's messages a role each."""
    field = prompt_field(prompt)
    if isinstance(prompt, TextPrompt):
        _require(bool(prompt.text), field, "must not be empty")
    elif isinstance(prompt, ChatPrompt):
        _require(bool(prompt.messages), f"{field}.messages", "must not be empty")
        for index, message in enumerate(prompt.messages):
            _require(bool(message.role), f"{field}.messages[{index}].role", "must not be empty")
    else:
        _require(bool(prompt.token_ids), f"{field}.token_ids", "must not be empty")


def prompt_field(prompt: Prompt) -> str:
    """Which field of the request holds the prompt."""
    if isinstance(prompt, TextPrompt):
        return "prompt.text"
    return "prompt.chat" if isinstance(prompt, ChatPrompt) else "prompt.tokens"


def check_token_ids(token_ids: Sequence[int], field: str, vocab_size: int) -> None:
    """Checks that every id is one of the model's."""
    if not token_ids or (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        return
    for index, token_id in enumerate(token_ids):
        _require(
            0 <= token_id < vocab_size,
            f"{field}[{index}]",
            f"{token_id} is not a token of the model; ids go from 0 to {vocab_size - 1}",
        )


def check_request_id(request_id: str) -> None:
    """Checks an id chosen by the client."""
    _require(
        len(request_id) <= MAX_REQUEST_ID_LENGTH,
        "request_id",
        f"must have at most {MAX_REQUEST_ID_LENGTH} characters, has {len(request_id)}",
    )
    _require(request_id.isprintable(), "request_id", "must have printable characters only")


def check_timeout(timeout: float | None) -> None:
    """Checks a time limit in seconds."""
    if timeout is not None:
        _require(0 < timeout <= MAX_TIMEOUT, "timeout", f"must be more than 0 and at most {MAX_TIMEOUT} s")


def _check_distribution(sampling: SamplingParams) -> None:
    # Written so that NaN fails.
    if sampling.temperature is not None and not 0 <= sampling.temperature <= MAX_TEMPERATURE:
        _refuse("temperature", f"must be from 0 to {MAX_TEMPERATURE:g}", sampling.temperature)
    if sampling.top_p is not None and not 0 < sampling.top_p <= 1:
        _refuse("top_p", "must be more than 0 and at most 1", sampling.top_p)
    if sampling.top_k is not None and sampling.top_k < 0:
        _refuse("top_k", "must be at least 0, which keeps all tokens", sampling.top_k)
    if sampling.min_p is not None and not 0 <= sampling.min_p <= 1:
        _refuse("min_p", "must be from 0 to 1", sampling.min_p)
    if sampling.seed is not None and not 0 <= sampling.seed < 2**64:
        _refuse("seed", "must be from 0 to 2^64 - 1", sampling.seed)


def _check_counts(sampling: SamplingParams) -> None:
    if sampling.n is not None and not 1 <= sampling.n <= MAX_N:
        _refuse("n", f"must be from 1 to {MAX_N}", sampling.n)
    if sampling.logprobs is not None and not 0 <= sampling.logprobs <= MAX_LOGPROBS:
        _refuse("logprobs", f"must be from 0 to {MAX_LOGPROBS}", sampling.logprobs)
    if sampling.max_tokens is not None and sampling.max_tokens < 1:
        _refuse("max_tokens", "must be at least 1", sampling.max_tokens)
    if sampling.min_tokens is not None:
        if sampling.min_tokens < 0:
            _refuse("min_tokens", "must be at least 0", sampling.min_tokens)
        if sampling.max_tokens is not None and sampling.min_tokens > sampling.max_tokens:
            _refuse("min_tokens", f"must be at most max_tokens ({sampling.max_tokens})", sampling.min_tokens)


def _check_stops(sampling: SamplingParams, limits: ModelLimits) -> None:
    if len(sampling.stop) > MAX_STOP_STRINGS:
        _refuse("stop", f"must be at most {MAX_STOP_STRINGS} strings", len(sampling.stop))
    for index, stop in enumerate(sampling.stop):
        _require(bool(stop), f"sampling.stop[{index}]", "must not be empty")
        if len(stop) > MAX_STOP_LENGTH:
            _refuse(f"stop[{index}]", f"must have at most {MAX_STOP_LENGTH} characters", len(stop))
    if len(sampling.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        _refuse("stop_token_ids", f"must be at most {MAX_STOP_TOKEN_IDS} ids", len(sampling.stop_token_ids))
    check_token_ids(sampling.stop_token_ids, "sampling.stop_token_ids", limits.vocab_size)


def _require(holds: bool, field: str, message: str) -> None:
    if not holds:
        raise InvalidArgument(field, message)


def _refuse(name: str, rule: str, value: object) -> None:
    raise InvalidArgument(f"sampling.{name}", f"{rule}, is {value}")
