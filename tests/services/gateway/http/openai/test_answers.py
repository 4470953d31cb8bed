"""Answers in OpenAI's shapes, byte for byte where clients depend on it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo.v1 import common_pb2, kvmanager_pb2
from services.rpc.columns import unpack_int32
from tests.services.gateway.gateway_bench import ALPHABET, LENGTH, STOP, Bench, bench, ids, one_answer
from tests.services.scripted_kvmanager import Script, end, eventually, refusal, tokens

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "abc"}]}
EURO = [ALPHABET.index(letter) for letter in "âĤ¬"]  # the bytes of one character


@asynccontextmanager
async def served(
    model: Path, script: Script = one_answer, **settings: Any
) -> AsyncIterator[tuple[Bench, httpx.AsyncClient]]:
    async with bench(model, script, **settings) as here, httpx.AsyncClient(base_url=here.url, timeout=30) as client:
        yield here, client


def events(response: httpx.Response) -> list[Any]:
    """What the events of a stream hold, the last of which is no JSON."""
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    parts = response.text.split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""], response.text
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]


def prompt_of(submission: kvmanager_pb2.Submission) -> str:
    return "".join(ALPHABET[each] for each in unpack_int32(submission.prompt_token_ids))


def two_pieces(submission: kvmanager_pb2.Submission) -> Sequence[kvmanager_pb2.AttachResponse]:
    """ "ab", then "c" and the end, of each sequence; with log probabilities where they are asked for."""
    logprobs = (-0.5, -1.0) if submission.sampling.HasField("logprobs") else ()
    first = [tokens(submission, ids("ab"), index=index, logprobs=logprobs) for index in range(submission.n)]
    last = [
        tokens(submission, ids("c"), position=2, index=index, logprobs=logprobs[:1], reason=STOP)
        for index in range(submission.n)
    ]
    return [*first, *last, end(submission, cached_tokens=2, prefix_match_end=common_pb2.PREFIX_MATCH_END_EVICTED)]


# --- Chat completions -----------------------------------------------------------------------------------------------


async def test_a_chat_completion(model: Path) -> None:
    async with served(model) as (here, client):
        response = await client.post("/v1/chat/completions", json=CHAT | {"model": model.name, "n": 2})
        answer = response.json()
    assert prompt_of(here.submission) == "u:abc;a:"
    assert response.headers["content-type"] == "application/json"
    assert answer.pop("id") == f"chatcmpl-{response.headers['x-request-id']}"
    assert isinstance(answer.pop("created"), int)
    message = {"role": "assistant", "content": "ab", "refusal": None}
    assert answer == {
        "object": "chat.completion",
        "model": model.name,
        "choices": [
            {"index": index, "message": message, "logprobs": None, "finish_reason": "length"} for index in range(2)
        ],
        "usage": {
            "prompt_tokens": 8,
            "completion_tokens": 4,
            "total_tokens": 12,
            "prompt_tokens_details": {"cached_tokens": 2},
        },
    }


async def test_a_streamed_chat_completion(model: Path) -> None:
    """First the role, then the text, then why it ended, then the usage."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    async with served(model, two_pieces) as (_, client):
        chunks = events(await client.post("/v1/chat/completions", json=CHAT | options))
    heads = {(chunk["id"], chunk["object"], chunk["created"], chunk["model"]) for chunk in chunks}
    assert len(heads) == 1
    assert next(iter(heads))[1] == "chat.completion.chunk"
    assert [chunk["choices"] for chunk in chunks] == [
        [choice({"role": "assistant", "content": ""})],
        [choice({"content": "ab"})],
        [choice({"content": "c"})],
        [choice({}, "stop")],
        [],
    ]
    *others, last = [chunk["usage"] for chunk in chunks]
    assert others == [None] * 4
    assert last["prompt_tokens"] == 8
    assert last["completion_tokens"] == 3
    assert last["prompt_tokens_details"] == {"cached_tokens": 2}


def choice(delta: dict[str, Any], reason: str | None = None, index: int = 0) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}


async def test_usage_is_streamed_only_where_it_is_asked_for(model: Path) -> None:
    async with served(model, two_pieces) as (_, client):
        plain = events(await client.post("/v1/chat/completions", json=CHAT | {"stream": True, "stream_options": None}))
        options = {"include_usage": True, "continuous_usage_stats": True}
        counted = events(
            await client.post("/v1/completions", json={"prompt": "abc", "stream": True, "stream_options": options})
        )
    assert not any("usage" in chunk for chunk in plain)
    assert all(chunk["choices"] for chunk in plain)
    assert [chunk["usage"]["completion_tokens"] for chunk in counted] == [2, 3, 3]
    assert {chunk["usage"]["prompt_tokens"] for chunk in counted} == {3}
    assert [len(chunk["choices"]) for chunk in counted] == [1, 1, 0]


async def test_several_streamed_choices(model: Path) -> None:
    async with served(model, two_pieces) as (_, client):
        chunks = events(await client.post("/v1/chat/completions", json=CHAT | {"stream": True, "n": 3}))
    for index in range(3):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert own[0] == choice({"role": "assistant", "content": ""}, index=index)
        assert "".join(each["delta"].get("content", "") for each in own) == "abc"
        assert own[-1] == choice({}, "stop", index)


async def test_log_probabilities_of_a_chat(model: Path) -> None:
    """A character that is spread over tokens is in their bytes."""

    def script(submission: kvmanager_pb2.Submission) -> Sequence[kvmanager_pb2.AttachResponse]:
        told = tokens(submission, EURO, logprobs=(-0.5, -1.0, float("-inf")), reason=LENGTH)
        top = told.updates[0].logprobs[0]
        top.top_token_ids.extend(ids("xy"))
        top.top_logprobs.extend([-0.25, float("-inf")])
        return [told, end(submission)]

    asked = CHAT | {"logprobs": True, "top_logprobs": 2}
    async with served(model, script) as (here, client):
        whole = (await client.post("/v1/chat/completions", json=asked)).json()
        chunks = events(await client.post("/v1/chat/completions", json=asked | {"stream": True}))
    assert here.kvmanager.submissions[0].sampling.logprobs == 2
    assert whole["choices"][0]["message"]["content"] == "€"
    logprobs = whole["choices"][0]["logprobs"]
    assert logprobs["refusal"] is None
    assert [(each["bytes"], each["logprob"]) for each in logprobs["content"]] == [
        ([0xE2], -0.5),
        ([0x82], -1.0),
        ([0xAC], -9999.0),
    ]
    assert logprobs["content"][0]["token"] == "\ufffd"
    assert logprobs["content"][0]["top_logprobs"] == [
        {"token": "x", "logprob": -0.25, "bytes": [ord("x")]},
        {"token": "y", "logprob": -9999.0, "bytes": [ord("y")]},
    ]
    streamed = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [entry for each in streamed if each for entry in each["content"]] == logprobs["content"]


# --- Completions ----------------------------------------------------------------------------------------------------


async def test_completions_of_several_prompts(model: Path) -> None:
    body = {"prompt": ["abc", "d"], "n": 2, "echo": True, "max_tokens": 7, "request_id": "mine"}
    async with served(model) as (here, client):
        response = await client.post("/v1/completions", json=body)
        streamed = events(await client.post("/v1/completions", json=body | {"stream": True}))
    answer = response.json()
    assert (answer["id"], answer["object"], response.headers["x-request-id"]) == (
        "cmpl-mine",
        "text_completion",
        "mine",
    )
    texts = ["abcab", "abcab", "dab", "dab"]
    assert answer["choices"] == [
        {"index": index, "text": text, "logprobs": None, "finish_reason": "length"} for index, text in enumerate(texts)
    ]
    assert answer["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 8,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    assert sorted(each.request_id for each in here.kvmanager.submissions) == ["mine-0", "mine-0", "mine-1", "mine-1"]
    assert {each.max_tokens for each in here.kvmanager.submissions} == {7}
    told = sorted((chunk["choices"][0] for chunk in streamed), key=lambda each: each["index"])
    assert told == answer["choices"]


async def test_prompts_of_token_ids(model: Path) -> None:
    async with served(model) as (here, client):
        body = {"prompt": ids("xyz"), "echo": True, "return_token_ids": True}
        (shown,) = (await client.post("/v1/completions", json=body)).json()["choices"]
    assert unpack_int32(here.submission.prompt_token_ids) == ids("xyz")
    assert (shown["text"], shown["token_ids"]) == ("xyzab", ids("ab"))


async def test_log_probabilities_of_a_completion(model: Path) -> None:
    def script(submission: kvmanager_pb2.Submission) -> Sequence[kvmanager_pb2.AttachResponse]:
        told = tokens(submission, [*ids("a"), *EURO, *ids("b")], logprobs=(-0.5,) * 5, reason=LENGTH)
        told.updates[0].logprobs[0].top_token_ids.extend(ids("x"))
        told.updates[0].logprobs[0].top_logprobs.append(-0.25)
        return [told, end(submission)]

    async with served(model, script) as (_, client):
        body = {"prompt": "abc", "logprobs": 1}
        (whole,) = (await client.post("/v1/completions", json=body)).json()["choices"]
        (chunk,) = events(await client.post("/v1/completions", json=body | {"stream": True}))
    assert whole["text"] == "a€b"
    assert whole["logprobs"] == {
        "text_offset": [0, 1, 1, 1, 2],
        "token_logprobs": [-0.5] * 5,
        "tokens": ["a", "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac", "b"],
        "top_logprobs": [
            {"x": -0.25, "a": -0.5},
            {"bytes:\\xe2": -0.5},
            {"bytes:\\x82": -0.5},
            {"bytes:\\xac": -0.5},
            {"b": -0.5},
        ],
    }
    assert chunk["choices"] == [whole]


async def test_why_no_more_of_the_prompt_was_found(model: Path) -> None:
    async with served(model) as (_, client):
        body = {"prompt": "abc", "explain": True, "request_id": "mine"}
        whole = (await client.post("/v1/completions", json=body)).json()["octavo"]
        *_, last = events(await client.post("/v1/completions", json=body | {"stream": True}))
    assert whole["request_id"] == "mine"
    assert whole["prefix_match"] == {"prompt_tokens": 3, "cached_tokens": 2, "end": "evicted"}
    assert last["choices"] == []
    assert last["octavo"]["prefix_match"] == whole["prefix_match"]


# --- Models and tokens ----------------------------------------------------------------------------------------------


async def test_models(model: Path) -> None:
    async with served(model, model_name="org/tiny") as (_, client):
        listed = (await client.get("/v1/models")).json()
        one = await client.get("/v1/models/org/tiny")
        other = await client.get("/v1/models/other")
    (shown,) = listed["data"]
    assert listed["object"] == "list"
    assert (shown["id"], shown["object"], shown["max_model_len"]) == ("org/tiny", "model", 64)
    assert one.json() == shown
    assert (other.status_code, other.json()["error"]["code"]) == (404, "model_not_found")


async def test_tokens_and_back(model: Path) -> None:
    async with served(model) as (_, client):
        text = (await client.post("/tokenize", json={"prompt": "ab", "return_token_strs": True})).json()
        messages = [{"role": "user", "content": "x"}]
        options = {"add_generation_prompt": False, "chat_template_kwargs": {"shout": True}}
        conversation = (await client.post("/tokenize", json={"messages": messages} | options)).json()
        back = (await client.post("/detokenize", json={"tokens": conversation["tokens"]})).json()
        bad = await client.post("/detokenize", json={"tokens": [1, 1000]})
        both = await client.post("/tokenize", json={"messages": messages, "prompt": "ab"})
        argument = await client.post("/tokenize", json={"messages": messages, "chat_template_kwargs": {"messages": []}})
    assert text == {"count": 2, "max_model_len": 64, "tokens": ids("ab"), "token_strs": ["a", "b"]}
    assert (conversation["count"], conversation["token_strs"]) == (5, None)
    assert back == {"prompt": "u:x;!"}
    for response, param in ((bad, "tokens[1]"), (both, "prompt"), (argument, "messages")):
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)


# --- Errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("chat/completions", {"temperature": -1}, "temperature"),
        ("chat/completions", {"max_completion_tokens": 100}, "max_completion_tokens"),
        ("chat/completions", {"max_tokens": 100}, "max_tokens"),
        ("chat/completions", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("chat/completions", {"messages": []}, "messages"),
        ("chat/completions", {"messages": [{"role": "", "content": "x"}]}, "messages[0].role"),
        ("chat/completions", {"messages": [{"role": "user", "content": "x" * 80}]}, "messages"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "cache_scope": "app"}, {"role": "", "content": "x"}]},
            "messages[1].role",
        ),
        ("completions", {"prompt": "x" * 80}, "prompt"),
        ("completions", {"prompt": [1, 1000]}, "prompt[1]"),
        ("completions", {"prompt": ["a", "x" * 80]}, "prompt[1]"),
        ("completions", {"prompt": None, "segments": []}, "segments"),
        ("completions", {"prompt": None, "segments": [{"token_ids": [1000]}]}, "segments[0].token_ids[0]"),
        ("completions", {"logprobs": 21}, "logprobs"),
        ("completions", {"n": 65}, "n"),
        ("completions", {"length_penalty": 2}, "length_penalty"),
        ("completions", {"timeout": -1}, "timeout"),
        ("completions", {"request_id": "x" * 129}, "request_id"),
        ("completions", {"guided_regex": "("}, "guided_regex"),
    ],
)
async def test_errors_name_the_client_s_field(shared: httpx.AsyncClient, path: str, fields: Any, param: str) -> None:
    start = CHAT if path.startswith("chat") else {"prompt": "abc", "max_tokens": 2}
    for stream in (False, True):
        response = await shared.post(f"/v1/{path}", json=start | fields | {"stream": stream})
        error = response.json()["error"]
        assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
        assert error["message"].startswith(f"{param}: ")
        assert error["code"]


@pytest.fixture
async def shared(model: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with served(model) as (_, client):
        yield client


async def test_the_statuses_of_errors(model: Path) -> None:
    import grpc

    expected = {
        grpc.StatusCode.RESOURCE_EXHAUSTED: (429, "rate_limit_error"),
        grpc.StatusCode.UNAVAILABLE: (503, "server_error"),
        grpc.StatusCode.DEADLINE_EXCEEDED: (504, "server_error"),
        grpc.StatusCode.ABORTED: (409, "conflict_error"),
        grpc.StatusCode.INTERNAL: (500, "server_error"),
    }
    codes = list(expected)
    async with served(model) as (here, client):
        for code in codes:
            here.kvmanager.script = lambda submission, code=code: [refusal(submission, code, "no", "A_REASON", 1.5)]  # type: ignore[misc]
            for stream in (False, True):
                response = await client.post("/v1/completions", json={"prompt": "abc", "stream": stream})
                error = response.json()["error"]
                assert (response.status_code, error["type"]) == expected[code]
                assert (error["message"], error["code"]) == ("no", "a_reason")
                assert (response.headers["retry-after"], response.headers["retry-after-ms"]) == ("2", "1500")
        unknown = await client.post("/v1/completions", json={"prompt": "abc", "model": "other"})
        scope = await client.post("/v1/completions", json={"prompt": "abc", "cache_scope": "shared:others"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert (scope.status_code, scope.json()["error"]["param"]) == (403, "cache_scope.shared")


async def test_an_error_in_the_middle_of_a_stream(model: Path) -> None:
    import grpc

    def script(submission: kvmanager_pb2.Submission) -> Sequence[kvmanager_pb2.AttachResponse]:
        return [tokens(submission, ids("ab")), refusal(submission, grpc.StatusCode.DEADLINE_EXCEEDED, "late", "LATE")]

    async with served(model, script) as (_, client):
        response = await client.post("/v1/chat/completions", json=CHAT | {"stream": True})
        whole = await client.post("/v1/chat/completions", json=CHAT)
    *_, last, nothing = response.text.split("\n\n")
    assert nothing == ""
    error = json.loads(last.removeprefix("data: "))["error"]
    assert error == {"message": "late", "type": "server_error", "param": None, "code": "late"}
    assert "[DONE]" not in response.text
    assert whole.status_code == 504


async def test_one_bad_prompt_ends_the_others(model: Path) -> None:
    async with served(model, lambda submission: [tokens(submission, ids("a"))]) as (here, client):
        response = await client.post("/v1/completions", json={"prompt": ["abc", [1000]]})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt[1][0]")
        await eventually(lambda: len(here.kvmanager.aborts) == len(here.kvmanager.submissions))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_its_request(model: Path, stream: bool) -> None:
    async with served(model, lambda submission: [tokens(submission, ids("a"))]) as (here, client):
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/completions", json={"prompt": ["abc", "de"], "stream": stream}, timeout=0.2)
        await eventually(lambda: len(here.kvmanager.aborts) == 2)
