"""smg, a router from PyPI, unchanged, in front of two stacks, and the `openai` SDK in front of that."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.services.e2e.processes import Processes, eventually
from tests.services.e2e.smg_gateway import Smg
from tests.services.e2e.stack import MODEL_NAME, Stack, make_executor
from tests.services.e2e.tiny_model import Reference

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

MESSAGES = [{"role": "user", "content": "The sheet is folded, the fold is cut"}]


@pytest.fixture(scope="module")
def stacks(processes: Processes, model: Path) -> Iterator[list[Stack]]:
    made = [Stack(processes, model, make_executor(processes, model)) for _ in range(2)]
    for stack in made:
        stack.start()
    yield made
    for stack in made:
        stack.close()
        stack.executor.kill()


@pytest.fixture(scope="module")
def smg(processes: Processes, stacks: list[Stack]) -> Iterator[Smg]:
    router = Smg(processes, [stack.gateway.address for stack in stacks])
    router.start()
    yield router
    router.close()


@pytest.fixture
def client(smg: Smg) -> openai.OpenAI:
    return openai.OpenAI(base_url=smg.url, api_key="none", max_retries=0, timeout=60)


def chat(client: openai.OpenAI, messages: list[Any], **parameters: Any) -> Any:
    parameters = {"max_tokens": 12, "temperature": 0, "extra_body": {"ignore_eos": True}} | parameters
    return client.chat.completions.create(model=MODEL_NAME, messages=messages, **parameters)


def text_of(reference: Reference, prompt: Sequence[int], max_tokens: int) -> str:
    """What transformers says. The router leaves out a character that is not complete at the end."""
    return reference.decode(reference.greedy(prompt, max_tokens)).rstrip("\ufffd")


def test_a_chat_is_answered_as_the_model_does(client: openai.OpenAI, reference: Reference) -> None:
    prompt = reference.encode_chat(MESSAGES)
    wanted = text_of(reference, prompt, 12)
    answer = chat(client, MESSAGES)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (wanted, "length")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(prompt), 12)
    pieces = list(chat(client, MESSAGES, stream=True, stream_options={"include_usage": True}))
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices) == wanted
    assert pieces[-1].usage.completion_tokens == 12


def test_a_text_is_continued_up_to_a_stop_string(client: openai.OpenAI, reference: Reference) -> None:
    prompt = "Fold it twice and it is a quarto"
    # The router takes a text as it is, without the tokens that the tokenizer adds.
    wanted = text_of(reference, reference.encode(prompt)[1:], 40)
    answer = client.completions.create(
        model=MODEL_NAME, prompt=prompt, max_tokens=40, temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].text == wanted
    stop = next(letter for letter in wanted[5:] if letter.isascii() and letter.isalpha())
    stopped = client.completions.create(model=MODEL_NAME, prompt=prompt, max_tokens=40, temperature=0, stop=[stop])
    assert stopped.choices[0].text == wanted[: wanted.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"


def test_samples_have_log_probabilities(client: openai.OpenAI) -> None:
    answer = chat(client, MESSAGES, n=3, temperature=1, seed=5, logprobs=True, top_logprobs=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage.completion_tokens == 36
    for choice in answer.choices:
        assert choice.logprobs.content
        for token in choice.logprobs.content:
            assert len(token.top_logprobs) == 2
            assert token.logprob <= token.top_logprobs[0].logprob


def test_an_answer_is_what_its_schema_says(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"size": {"enum": ["quarto", "octavo"]}, "bound": {"type": "boolean"}},
        "required": ["size", "bound"],
        "additionalProperties": False,
    }
    format = {"type": "json_schema", "json_schema": {"name": "book", "schema": schema}}
    for stream in (False, True):
        answer = chat(client, MESSAGES, max_tokens=200, response_format=format, stream=stream, extra_body=None)
        text = "".join(each.choices[0].delta.content or "" for each in answer) if stream else text_in(answer)
        book = json.loads(text)
        assert book["size"] in ("quarto", "octavo")
        assert isinstance(book["bound"], bool)


def text_in(answer: Any) -> str:
    text: str = answer.choices[0].message.content
    return text


def test_what_is_refused_is_the_client_s_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        chat(client, MESSAGES, max_tokens=100_000)


def test_a_client_that_leaves_leaves_nothing_behind(client: openai.OpenAI, stacks: list[Stack]) -> None:
    before = sum(stack.memory_map().counters.generated_tokens for stack in stacks)
    stream = chat(client, MESSAGES, n=4, max_tokens=440, temperature=1, stream=True)
    next(iter(stream))
    stream.close()
    for stack in stacks:
        stack.wait_until_idle()
    generated = sum(stack.memory_map().counters.generated_tokens for stack in stacks) - before
    assert generated < 4 * 440


def test_requests_go_where_their_prefix_is_cached(client: openai.OpenAI, smg: Smg, stacks: list[Stack]) -> None:
    """Though the router has never seen it: KV events tell it."""
    for number, stack in enumerate([*stacks, *stacks]):
        conversation = [{"role": "user", "content": f"{number} Leaves are gathered, sewn and bound; " * 6}]
        known = smg.known_blocks(stack.gateway.address)
        stack.caller.generate(conversation, max_tokens=1)
        eventually(lambda: smg.known_blocks(stack.gateway.address) > known, what="smg knows the new blocks")  # noqa: B023
        before = [each.memory_map().counters.cached_prompt_tokens for each in stacks]
        usage = chat(client, conversation).usage
        assert usage.prompt_tokens_details.cached_tokens >= usage.prompt_tokens * 0.8
        after = [each.memory_map().counters.cached_prompt_tokens for each in stacks]
        gained = [late - early for early, late in zip(before, after, strict=True)]
        assert gained == [usage.prompt_tokens_details.cached_tokens if each is stack else 0 for each in stacks]


def test_it_knows_how_busy_each_stack_is(smg: Smg, stacks: list[Stack]) -> None:
    busy, idle = stacks
    with busy.executor.held():
        calls = [busy.caller.start(f"{number} waits again", max_tokens=8, ignore_eos=True) for number in range(3)]

        def requests(stack: Stack) -> float:
            running = smg.metric("smg_engine_running_requests", stack.gateway.address)
            return running + smg.metric("smg_engine_waiting_requests", stack.gateway.address)

        eventually(lambda: requests(busy) == 3, what="smg knows of three requests")
        assert requests(idle) == 0
        assert smg.metric("smg_engine_token_usage", busy.gateway.address) > 0
    for call in calls:
        call.result()
    eventually(lambda: requests(busy) == 0, what="smg knows that they are over")


def test_a_new_kv_manager_s_cache_is_learned_anew(client: openai.OpenAI, smg: Smg, stacks: list[Stack]) -> None:
    """It adopts what the executor holds, and the router hears of that."""
    one = stacks[0]

    def knows_all() -> bool:
        return smg.known_blocks(one.gateway.address) == one.memory_map().cached_blocks > 0

    one.caller.generate("something that is cached " * 4, max_tokens=1)
    one.wait_until_idle()
    eventually(knows_all, what="smg knows all blocks")
    one.kvmanager.kill()
    eventually(lambda: smg.known_blocks(one.gateway.address) == 0, what="smg has forgotten the blocks")
    one.kvmanager.start()
    one.kvmanager.wait_until_serving()
    one.wait_for_executors(one.executor)
    one.wait_until_idle()
    eventually(knows_all, what="smg knows the blocks again")
