"""What clients send: the fields that are read. Others are ignored, and null is the same as left out.

Names and meanings are those of OpenAI's API reference (completions, chat completions) and of vLLM's "extra parameters";
those of Octavo's own are marked.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from services.gateway.http.errors import HttpError

_PLACE = re.compile(r"^(?P<what>.*) - at (?:`key` in )?`\$\.?(?P<field>.*)`$")
_MISSING = re.compile(r"^Object missing required field `(?P<field>.*)`$")

T = TypeVar("T")


class StreamOptions(msgspec.Struct, kw_only=True):
    """What is streamed beside the answer."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchema(msgspec.Struct, kw_only=True):
    """`json_schema` of a response format."""

    schema: Any = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    """What the answer must look like, as OpenAI says it."""

    type: str
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True):
    """The same, as vLLM says it."""

    json: Any = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class GenerationBody(msgspec.Struct, kw_only=True):
    """What completions and chat completions have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # Sampling
    n: int | None = None
    best_of: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    # Beam search
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | str | None = None
    beam_width: int | None = None  # Octavo's
    # What the answer must look like
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    # The request as a whole
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    request_id: str | None = None
    priority: int | None = None
    # Octavo's
    cache_scope: str | None = None
    timeout: float | None = None
    response_interval: float | None = None
    explain: bool | None = None
    # Read only to be refused
    allowed_token_ids: Any = None
    bad_words: Any = None
    include_stop_str_in_output: Any = None
    logits_processors: Any = None
    prompt_logprobs: Any = None
    truncate_prompt_tokens: Any = None


class PromptSegment(msgspec.Struct, kw_only=True):
    """A part of a prompt with a cache scope of its own: Octavo's."""

    text: str | None = None
    token_ids: list[int] | None = None
    cache_scope: str | None = None


class CompletionBody(GenerationBody, kw_only=True):
    """`/v1/completions`."""

    prompt: str | list[str | int | list[int]] | None = None
    segments: list[PromptSegment] | None = None  # Octavo's
    echo: bool | None = None
    logprobs: int | None = None
    # Read only to be refused
    prompt_embeds: Any = None
    suffix: Any = None


class ContentPart(msgspec.Struct, kw_only=True):
    """A part of a message's content."""

    type: str = "text"
    text: str | None = None


class Message(msgspec.Struct, kw_only=True):
    """A message of a conversation."""

    role: str
    content: str | list[ContentPart] | None = None
    cache_scope: str | None = None  # Octavo's
    # Read only to be refused
    function_call: Any = None
    tool_calls: Any = None


class ChatBody(GenerationBody, kw_only=True):
    """`/v1/chat/completions`."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # Read only to be refused
    audio: Any = None
    chat_template: Any = None
    continue_final_message: Any = None
    documents: Any = None
    echo: Any = None
    function_call: Any = None
    functions: Any = None
    modalities: list[str] | None = None
    tool_choice: Any = None
    tools: Any = None
    web_search_options: Any = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    """`/tokenize`: of a text or of a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # Read only to be refused
    chat_template: Any = None
    continue_final_message: Any = None
    tools: Any = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """`/detokenize`."""

    model: str | None = None
    tokens: list[int]


def decode_body(kind: type[T], data: bytes) -> T:
    """A request's body.

    Raises:
        HttpError: 400: it is no JSON, or too deep, or a field that is read has the wrong type.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HttpError(400, f"the body is not JSON: {error}", "invalid_json") from None
    except RecursionError:
        raise HttpError(400, "the body: is nested too deeply", "invalid_json") from None


def _wrong_type(message: str) -> HttpError:
    if place := _PLACE.match(message):
        what, field = place["what"], place["field"]
        if missing := _MISSING.match(what):
            what, field = "is missing", ".".join(filter(None, (field, missing["field"])))
        return HttpError(400, f"{field}: {what}", "invalid_argument", field)
    if missing := _MISSING.match(message):
        return HttpError(400, f"{missing['field']}: is missing", "invalid_argument", missing["field"])
    return HttpError(400, f"the body: {message}", "invalid_argument")
