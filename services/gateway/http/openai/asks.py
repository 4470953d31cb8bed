"""What a body comes to: requests to the core, and how they are answered."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import msgspec

from gateway.request import GenerationRequest, Prompt, SamplingParams
from services.gateway.http.errors import HttpError
from services.gateway.http.openai.bodies import ChatBody, CompletionBody, GenerationBody
from services.gateway.http.openai.field_names import FieldNames
from services.gateway.http.openai.guides import decode_guide
from services.gateway.http.openai.prompts import decode_chat, decode_prompts, decode_scope
from services.gateway.http.openai.sampling import decode_sampling

DEFAULT_MAX_TOKENS = 16
"""Of a completion, as OpenAI has it; a chat completion takes whatever fits."""

_REFUSED = (
    *("allowed_token_ids", "bad_words", "include_stop_str_in_output", "logits_processors", "prompt_logprobs"),
    "truncate_prompt_tokens",
)
_REFUSED_COMPLETION = ("prompt_embeds", "suffix")
_REFUSED_CHAT = (
    *("audio", "chat_template", "continue_final_message", "documents", "echo", "web_search_options"),
    "add_special_tokens",
)
"""Fields that ask for what is not there. Ignoring them would give another answer than the one that was asked for."""


@dataclass(frozen=True)
class Ask:
    """One call: a request to the core for each of its prompts.

    Attributes:
        request_id: Of the call; where there are several requests, each has it with a number.
        requests: With as many choices each as the other.
        names: Of each request's fields.
        logprobs: Each token's log probability is shown.
    """

    request_id: str
    requests: Sequence[GenerationRequest]
    names: Sequence[FieldNames]
    stream: bool
    include_usage: bool
    continuous_usage: bool
    logprobs: bool
    token_ids: bool
    echo: bool
    explain: bool

    @property
    def num_choices(self) -> int:
        """Of each request."""
        return self.requests[0].sampling.n or 1


def chat_ask(body: ChatBody, request_id: str) -> Ask:
    """What a chat completion asks for.

    Args:
        request_id: Of the call, where the body has none; may be empty.

    Raises:
        HttpError: 400: it asks for what is not there, or contradicts itself.
    """
    refuse_set(body, (*_REFUSED, *_REFUSED_CHAT))
    _refuse_tools(body)
    if body.top_logprobs is not None and not body.logprobs:
        _refuse("top_logprobs", "needs logprobs to be true")
    guide, guide_field = decode_guide(body)
    max_tokens, max_tokens_field = body.max_completion_tokens, "max_completion_tokens"
    if max_tokens is None:
        max_tokens, max_tokens_field = body.max_tokens, "max_tokens"
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    sampling = decode_sampling(body, guide, max_tokens, logprobs)
    prompts = [decode_chat(body.messages, body)]
    return _ask(body, request_id, prompts, sampling, [FieldNames.of_chat(max_tokens_field, guide_field)])


def completion_ask(body: CompletionBody, request_id: str) -> Ask:
    """What a completion asks for; otherwise as `chat_ask`."""
    refuse_set(body, (*_REFUSED, *_REFUSED_COMPLETION))
    if body.echo and body.logprobs is not None:
        _refuse("echo", "can't be given beside logprobs: a prompt's log probabilities are not there")
    if body.echo and body.segments is not None:
        _refuse("echo", "can't be given beside segments")
    guide, guide_field = decode_guide(body)
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    sampling = decode_sampling(body, guide, max_tokens, body.logprobs)
    prompts = decode_prompts(body)
    fields = ["prompt"] if len(prompts) == 1 else [f"prompt[{index}]" for index in range(len(prompts))]
    names = [FieldNames.of_completion(field, guide_field) for field in fields]
    return _ask(body, request_id, prompts, sampling, names, echo=bool(body.echo))


def _ask(
    body: GenerationBody,
    request_id: str,
    prompts: Sequence[Prompt],
    sampling: SamplingParams,
    names: Sequence[FieldNames],
    echo: bool = False,
) -> Ask:
    options = body.stream_options
    if options is not None and not body.stream:
        _refuse("stream_options", "needs stream to be true")
    request_id = body.request_id or request_id or secrets.token_hex(16)
    if not (request_id.isascii() and request_id.isprintable()):
        _refuse("request_id", "must have printable ASCII characters only")  # it comes back in a header
    ids = [request_id] if len(prompts) == 1 else [f"{request_id}-{index}" for index in range(len(prompts))]
    scope = decode_scope(body.cache_scope)
    requests = [
        GenerationRequest(
            prompt=prompt,
            sampling=sampling,
            model=body.model or "",
            timeout=body.timeout,
            request_id=own_id,
            priority=body.priority or 0,
            scope=scope,
            response_interval=body.response_interval,
        )
        for prompt, own_id in zip(prompts, ids, strict=True)
    ]
    return Ask(
        request_id=request_id,
        requests=requests,
        names=names,
        stream=bool(body.stream),
        include_usage=options is not None and bool(options.include_usage),
        continuous_usage=options is not None and bool(options.include_usage and options.continuous_usage_stats),
        logprobs=sampling.logprobs is not None,
        token_ids=bool(body.return_token_ids),
        echo=echo,
        explain=bool(body.explain),
    )


def refuse_set(body: msgspec.Struct, names: Sequence[str]) -> None:
    """Refuses a body that has one of these fields, unless it asks for nothing."""
    for name in names:
        value = getattr(body, name)
        if value is not None and value is not False and value not in ([], {}, ""):
            _refuse(name, "is not supported")


def _refuse_tools(body: ChatBody) -> None:
    if body.tools and body.tool_choice != "none":
        _refuse("tools", 'calls of tools are not supported; with tool_choice "none" they are ignored')
    if body.functions and body.function_call != "none":
        _refuse("functions", 'calls of functions are not supported; with function_call "none" they are ignored')
    if body.modalities and body.modalities != ["text"]:
        _refuse("modalities", f"must be text alone, is {body.modalities}")


def _refuse(field: str, message: str) -> NoReturn:
    raise HttpError(400, f"{field}: {message}", "invalid_argument", field)
