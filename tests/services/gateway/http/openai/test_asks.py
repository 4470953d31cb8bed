"""What bodies come to: requests as the core wants them, or an error that names the client's field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.request import (
    ChatMessage,
    ChatPrompt,
    ChatRendering,
    EarlyStopping,
    Guide,
    GuideKind,
    SamplingParams,
    Segment,
    SegmentedPrompt,
    TextPrompt,
    TokenPrompt,
)
from gateway.scope import CacheScope, ScopeLevel
from services.gateway.http.errors import HttpError
from services.gateway.http.openai.asks import Ask, chat_ask, completion_ask
from services.gateway.http.openai.bodies import ChatBody, CompletionBody, decode_body

HELLO = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}
SCHEMA_TEXT = '{"type":"object","properties":{"b":{"type":"string"},"a":{"type":"integer"}}}'


def chat(**fields: Any) -> Ask:
    return chat_ask(decode_body(ChatBody, json.dumps({"messages": HELLO} | fields).encode()), "")


def complete(**fields: Any) -> Ask:
    return completion_ask(decode_body(CompletionBody, json.dumps({"prompt": "hi"} | fields).encode()), "")


def sampling(**fields: Any) -> SamplingParams:
    return chat(**fields).requests[0].sampling


def test_every_sampling_field_is_understood() -> None:
    fields = {
        "temperature": 1,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0.1,
        "n": 2,
        "best_of": 4,
        "max_tokens": 9,
        "min_tokens": 2,
        "seed": 2**64 - 1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.5,
        "logit_bias": {"5": -100},
        "stop": ["x", "y"],
        "stop_token_ids": [7],
        "ignore_eos": True,
        "skip_special_tokens": False,
        "logprobs": True,
        "top_logprobs": 4,
        "length_penalty": 0.5,
        "early_stopping": "never",
        "beam_width": 3,
    }
    assert sampling(**fields) == SamplingParams(
        temperature=1,
        top_p=0.5,
        top_k=3,
        min_p=0.1,
        n=2,
        best_of=4,
        max_tokens=9,
        min_tokens=2,
        seed=2**64 - 1,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.5,
        logit_bias={5: -100.0},
        stop=["x", "y"],
        stop_token_ids=[7],
        ignore_eos=True,
        skip_special_tokens=False,
        logprobs=4,
        length_penalty=0.5,
        early_stopping=EarlyStopping.NEVER,
        beam_width=3,
    )


def test_unknown_and_null_fields_are_as_if_they_were_not_there() -> None:
    nulls = dict.fromkeys((*ChatBody.__struct_fields__, "unknown"))
    nulls["messages"] = [HELLO[0] | {"name": "x", "refusal": None, "tool_calls": None, "cache_scope": None}]  # type: ignore[assignment]
    (request,) = chat(**nulls, user="u", store=True, metadata={"a": 1}, parallel_tool_calls=True).requests
    (plain,) = chat(request_id="r").requests
    assert request.sampling == plain.sampling == SamplingParams()
    assert request.prompt == plain.prompt
    nulls = dict.fromkeys((*CompletionBody.__struct_fields__, "unknown"))
    assert complete(**nulls | {"prompt": "hi"}).requests[0].sampling == SamplingParams(max_tokens=16)


def test_values_that_mean_something_else_elsewhere() -> None:
    assert sampling(max_tokens=3, max_completion_tokens=5).max_tokens == 5
    assert complete().requests[0].sampling.max_tokens == 16
    assert sampling().max_tokens is None
    assert (sampling(top_k=-1).top_k, sampling(seed=-1).seed) == (0, None)
    assert sampling(stop="x").stop == ["x"]
    assert sampling(logprobs=True).logprobs == 0
    assert sampling(use_beam_search=True, n=3).beam_width == 3
    assert sampling(early_stopping=True).early_stopping is EarlyStopping.FIRST
    assert sampling(early_stopping=False).early_stopping is EarlyStopping.HEURISTIC
    assert complete(logprobs=0).requests[0].sampling.logprobs == 0


@pytest.mark.parametrize(
    ("fields", "prompts"),
    [
        ({"prompt": "a"}, [TextPrompt("a")]),
        ({"prompt": ["a", "b"]}, [TextPrompt("a"), TextPrompt("b")]),
        ({"prompt": [1, 2]}, [TokenPrompt([1, 2])]),
        ({"prompt": [[1, 2], [3]]}, [TokenPrompt([1, 2]), TokenPrompt([3])]),
        ({"prompt": "a", "add_special_tokens": False}, [TextPrompt("a", add_special_tokens=False)]),
        (
            {"prompt": None, "segments": [{"text": "a", "cache_scope": "shared:docs"}, {"text": "b"}]},
            [
                SegmentedPrompt(
                    [Segment(TextPrompt("a"), CacheScope(ScopeLevel.SHARED, "docs")), Segment(TextPrompt("b"))]
                )
            ],
        ),
        ({"prompt": None, "segments": [{"token_ids": [1]}]}, [SegmentedPrompt([Segment(TokenPrompt([1]))])]),
    ],
)
def test_prompts(fields: dict[str, Any], prompts: list[Any]) -> None:
    ask = complete(**fields, request_id="r", priority=3, timeout=2.5, cache_scope="app", response_interval=0.5)
    assert [request.prompt for request in ask.requests] == prompts
    ids = ["r"] if len(prompts) == 1 else ["r-0", "r-1"]
    assert [request.request_id for request in ask.requests] == ids
    (request, *_) = ask.requests
    assert (request.priority, request.timeout, request.response_interval) == (3, 2.5, 0.5)
    assert request.scope == CacheScope(ScopeLevel.APP)


def test_conversations() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": parts}, {"role": "assistant"}]
    turns = [ChatMessage("system", "s"), ChatMessage("user", "a\nb"), ChatMessage("assistant", "")]
    (request,) = chat(messages=messages).requests
    assert request.prompt == ChatPrompt(turns)
    rendering = ChatRendering(answer_follows=False, arguments={"enable_thinking": False})
    options = {"add_generation_prompt": False, "chat_template_kwargs": {"enable_thinking": False}}
    (request,) = chat(messages=messages, **options).requests
    assert request.prompt == ChatPrompt(turns, rendering)
    messages[0]["cache_scope"] = "shared:prompts"
    (request,) = chat(messages=messages, **options).requests
    scopes = [CacheScope(ScopeLevel.SHARED, "prompts"), None, None]
    segments = [Segment(turn, scope) for turn, scope in zip(turns, scopes, strict=True)]
    assert request.prompt == SegmentedPrompt(segments, rendering)


@pytest.mark.parametrize(
    ("fields", "guide"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Guide(GuideKind.JSON_SCHEMA, '{"type":"object"}')),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": SCHEMA, "strict": True},
                }
            },
            Guide(GuideKind.JSON_SCHEMA, SCHEMA_TEXT),
        ),
        ({"guided_json": SCHEMA}, Guide(GuideKind.JSON_SCHEMA, SCHEMA_TEXT)),
        ({"guided_json": SCHEMA_TEXT}, Guide(GuideKind.JSON_SCHEMA, SCHEMA_TEXT)),
        ({"guided_regex": "a+"}, Guide(GuideKind.REGEX, "a+")),
        ({"guided_choice": ["a", "b"]}, Guide(GuideKind.CHOICE, choices=("a", "b"))),
        ({"guided_grammar": 'start: "a"'}, Guide(GuideKind.GRAMMAR, 'start: "a"')),
        ({"structured_outputs": {"json": SCHEMA}}, Guide(GuideKind.JSON_SCHEMA, SCHEMA_TEXT)),
        ({"structured_outputs": {"json_object": True}}, Guide(GuideKind.JSON_SCHEMA, '{"type":"object"}')),
        ({"structured_outputs": {"regex": "a"}}, Guide(GuideKind.REGEX, "a")),
        ({"structured_outputs": {"choice": ["a"]}}, Guide(GuideKind.CHOICE, choices=("a",))),
        ({"structured_outputs": {"grammar": "g"}}, Guide(GuideKind.GRAMMAR, "g")),
    ],
)
def test_guides(fields: dict[str, Any], guide: Guide | None) -> None:
    assert sampling(**fields).guide == guide
    assert complete(**fields).requests[0].sampling.guide == guide


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"stop": [1]}, "stop[0]"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"messages": "hi"}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "user", "cache_scope": "all"}]}, "messages[0].cache_scope"),
        ({"cache_scope": "all"}, "cache_scope"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"functions": [{}]}, "functions"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"early_stopping": "soon"}, "early_stopping"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"request_id": "a\nb"}, "request_id"),
    ],
)
def test_what_is_refused_in_a_chat(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(HttpError) as caught:
        chat(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert caught.value.message.startswith(f"{param}: ")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [["a"]]}, "prompt[0][0]"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": ["a"] * 1025}, "prompt"),
        ({"segments": [{"text": "a"}]}, "segments"),
        ({"prompt": None, "segments": [{"text": "a", "token_ids": [1]}]}, "segments[0]"),
        ({"suffix": "x"}, "suffix"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"logprobs": True}, "logprobs"),
    ],
)
def test_what_is_refused_in_a_completion(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(HttpError) as caught:
        complete(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_what_is_asked_for_in_vain_is_ignored_where_nothing_depends_on_it() -> None:
    assert sampling(tools=[{"type": "function"}], tool_choice="none") == SamplingParams()
    assert sampling(tools=[], functions=[], modalities=["text"], continue_final_message=False) == SamplingParams()
    assert complete(suffix="").requests[0].prompt == TextPrompt("hi")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'"x"', b"\xff", b'{"messages": [{"role": "\\ud800"}]}'])
def test_what_is_no_json_object(data: bytes) -> None:
    with pytest.raises(HttpError) as caught:
        decode_body(ChatBody, data)
    assert (caught.value.status, caught.value.param) == (400, None)
