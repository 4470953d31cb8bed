"""OpenAI's own SDK, unchanged, in front of a real stack."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tests.services.e2e.stack import MODEL_NAME, Stack
from tests.services.e2e.tiny_model import Reference

MESSAGES: Any = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "how many leaves?"}]
GREEDY: Any = {"model": MODEL_NAME, "temperature": 0, "extra_body": {"ignore_eos": True}}


@pytest.fixture
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{stack.gateway.http_address}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, client.models.retrieve(MODEL_NAME).id) == (MODEL_NAME, MODEL_NAME)


def test_a_chat_completion_whole_and_streamed(client: openai.OpenAI, reference: Reference) -> None:
    prompt = reference.encode_chat(MESSAGES)
    expected = reference.decode(reference.greedy(prompt, 40))
    whole = client.chat.completions.create(messages=MESSAGES, max_completion_tokens=40, **GREEDY)
    assert whole.choices[0].message.content == expected
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len(prompt), 40)
    assert whole._request_id is not None
    assert whole.id.endswith(whole._request_id)

    chunks = list(
        client.chat.completions.create(
            messages=MESSAGES, max_tokens=40, stream=True, stream_options={"include_usage": True}, **GREEDY
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == expected
    assert chunks[0].choices[0].delta.role == "assistant"
    last = chunks[-1].usage
    assert last is not None
    assert last.prompt_tokens_details is not None
    assert 32 <= (last.prompt_tokens_details.cached_tokens or 0) < len(prompt)


def test_completions(client: openai.OpenAI, reference: Reference) -> None:
    prompts = ["A sheet é is", "folded 🐙"]
    answer = client.completions.create(prompt=prompts, max_tokens=20, n=2, echo=True, **GREEDY)
    texts = [prompt + reference.decode(reference.greedy(reference.encode(prompt), 20)) for prompt in prompts]
    assert [choice.text for choice in answer.choices] == [texts[0], texts[0], texts[1], texts[1]]
    token_ids = [5, 300, 17, 260, 9]
    streamed = client.completions.create(prompt=token_ids, max_tokens=20, stream=True, **GREEDY)
    assert "".join(chunk.choices[0].text for chunk in streamed) == reference.decode(reference.greedy(token_ids, 20))


def test_log_probabilities(client: openai.OpenAI, reference: Reference) -> None:
    chat = client.chat.completions.create(messages=MESSAGES, max_tokens=8, logprobs=True, top_logprobs=3, **GREEDY)
    assert chat.choices[0].logprobs is not None
    content = chat.choices[0].logprobs.content or []
    assert len(content) == 8
    assert b"".join(bytes(each.bytes or []) for each in content).decode("utf-8", "replace") == (
        chat.choices[0].message.content
    )
    assert all(each.top_logprobs[0].logprob == each.logprob for each in content), "greedy takes the likeliest"
    legacy = client.completions.create(prompt="A sheet", max_tokens=8, logprobs=3, **GREEDY).choices[0].logprobs
    assert legacy is not None
    assert [len(each or []) for each in (legacy.tokens, legacy.token_logprobs, legacy.top_logprobs)] == [8, 8, 8]
    assert legacy.text_offset is not None
    assert legacy.text_offset[0] == 0


def test_why_it_went_as_it_did(client: openai.OpenAI) -> None:
    own: Any = {"ignore_eos": True, "explain": True, "request_id": "asked-over-http"}
    whole = client.completions.create(model=MODEL_NAME, prompt="A sheet is folded", max_tokens=5, extra_body=own)
    *_, last = client.completions.create(
        model=MODEL_NAME, prompt="A sheet is folded", max_tokens=5, stream=True, extra_body=own
    )
    for answer in (whole, last):
        told = (answer.model_extra or {})["octavo"]
        assert told["request_id"] == "asked-over-http"
        assert told["prefix_match"]["end"]
        kinds = [decision["kind"] for decision in told["timeline"]["decisions"]]
        assert [kind for kind in kinds if kind != "waited"] == [
            *("queued", "admitted", "prefill", "first_token", "finished")
        ]


def test_many_at_once(stack: Stack, reference: Reference) -> None:
    prompts = [f"{'page ' * i}number {i}" for i in range(12)]

    async def ask(client: openai.AsyncOpenAI, prompt: str) -> str:
        stream = await client.completions.create(prompt=prompt, max_tokens=30, stream=True, **GREEDY)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def ask_all() -> list[str]:
        base_url = f"http://{stack.gateway.http_address}/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, prompt) for prompt in prompts))

    expected = [reference.decode(reference.greedy(reference.encode(prompt), 30)) for prompt in prompts]
    assert asyncio.run(ask_all()) == expected


def test_leaving_a_stream_ends_the_request(client: openai.OpenAI, stack: Stack) -> None:
    stream = client.completions.create(prompt="A sheet", max_tokens=480, stream=True, **GREEDY)
    next(iter(stream))
    stream.close()
    stack.wait_until_idle()


class Book(BaseModel):
    title: str
    format: Literal["folio", "quarto", "octavo"]
    leaves: int


def test_structured_output(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL_NAME, "messages": MESSAGES, "seed": 7, "max_tokens": 400}
    parsed = client.chat.completions.parse(response_format=Book, **asked).choices[0]
    assert parsed.finish_reason == "stop"
    assert isinstance(parsed.message.parsed, Book)
    with client.chat.completions.stream(response_format=Book, **asked) as stream:
        final = stream.get_final_completion().choices[0]
    assert isinstance(final.message.parsed, Book)
    chosen = client.chat.completions.create(extra_body={"guided_choice": ["folio", "quarto"]}, **asked)
    assert chosen.choices[0].message.content in ("folio", "quarto")
    loose = client.chat.completions.create(response_format={"type": "json_object"}, **asked | {"max_tokens": 100})
    content = loose.choices[0].message.content or ""
    assert content.lstrip().startswith("{")
    if loose.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(content), dict)


def test_errors_are_the_sdk_s(client: openai.OpenAI) -> None:
    ask = client.chat.completions.create
    with pytest.raises(openai.BadRequestError) as caught:
        ask(model=MODEL_NAME, messages=MESSAGES, temperature=-1)
    assert (caught.value.param, caught.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.NotFoundError) as missing:
        ask(model="other", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.PermissionDeniedError):
        ask(model=MODEL_NAME, messages=MESSAGES, extra_body={"cache_scope": "shared:others"})
    with pytest.raises(openai.BadRequestError, match="tokens"):
        client.completions.create(model=MODEL_NAME, prompt="page " * 600)
    with pytest.raises(openai.APIStatusError) as late:
        client.completions.create(model=MODEL_NAME, prompt="a", max_tokens=480, extra_body={"timeout": 0.001})
    assert late.value.status_code == 504
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.parse(model=MODEL_NAME, messages=MESSAGES, tools=[openai.pydantic_function_tool(Book)])
