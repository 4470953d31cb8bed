"""Answers of the three services together, against transformers on the same model."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.v1 import common_pb2, inference_pb2
from tests.services.e2e.calls import Answer, Caller
from tests.services.e2e.stack import Stack
from tests.services.e2e.tiny_model import MAX_MODEL_LEN, Reference

STOP, LENGTH = common_pb2.FINISH_REASON_STOP, common_pb2.FINISH_REASON_LENGTH
SAMPLED: dict[str, Any] = {"temperature": 1, "ignore_eos": True}
MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "how many leaves?"}]


def check_usage(answer: Answer, prompt_tokens: int) -> None:
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == prompt_tokens
    assert answer.usage.completion_tokens == sum(len(token_ids) for token_ids in answer.all_token_ids())


def check_text(answer: Answer, reference: Reference) -> None:
    for sequence in answer.sequences.values():
        assert sequence.text == reference.decode(sequence.token_ids)


@pytest.mark.parametrize("kind", ["text", "chat", "tokens"])
def test_greedy_equals_transformers_for_every_kind_of_prompt(caller: Caller, reference: Reference, kind: str) -> None:
    text = "A sheet é 🐙 is folded"
    prompt: Any = {"text": text, "chat": MESSAGES, "tokens": [5, 300, 17, 260, 9]}[kind]
    token_ids: list[int] = {"text": reference.encode(text), "chat": reference.encode_chat(MESSAGES), "tokens": prompt}[
        kind
    ]
    answer = caller.generate(prompt, max_tokens=60, ignore_eos=True)
    assert answer.token_ids == reference.greedy(token_ids, 60)
    assert answer.finish_reason == LENGTH
    check_text(answer, reference)
    check_usage(answer, len(token_ids))


def test_eight_at_once_equal_transformers(caller: Caller, reference: Reference) -> None:
    prompts = [f"{'page ' * (7 * i)}number {i}" for i in range(8)]
    answers = caller.generate_all([{"prompt": prompt, "max_tokens": 40, "ignore_eos": True} for prompt in prompts])
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.token_ids == reference.greedy(reference.encode(prompt), 40)
        check_text(answer, reference)


def test_a_long_answer_ends_with_the_models_context(caller: Caller, reference: Reference) -> None:
    prompt = [7] * (MAX_MODEL_LEN - 100)
    answer = caller.generate(prompt, ignore_eos=True)
    assert answer.token_ids == reference.greedy(prompt, 100)
    assert answer.finish_reason == LENGTH


def test_a_prompt_with_room_for_one_token(caller: Caller, reference: Reference) -> None:
    prompt = [9] * (MAX_MODEL_LEN - 1)
    assert caller.generate(prompt).token_ids == reference.greedy(prompt, 1, ignore_eos=False)


def test_end_of_sequence(caller: Caller, reference: Reference) -> None:
    """The answer ends with the model's own token unless the request goes on past it, or wants more tokens first."""
    prompt, length = prompt_that_ends(reference)
    answer = caller.generate(prompt, max_tokens=length + 20)
    assert answer.token_ids == reference.greedy(prompt, length + 20, ignore_eos=False)
    assert answer.token_ids[-1] == reference.eos_token_id
    assert answer.finish_reason == STOP
    check_text(answer, reference)
    check_usage(answer, len(prompt))

    past = caller.generate(prompt, max_tokens=length + 20, ignore_eos=True)
    assert past.token_ids == reference.greedy(prompt, length + 20)
    assert past.token_ids[:length] == answer.token_ids

    longer = caller.generate(prompt, max_tokens=length + 20, min_tokens=length + 10)
    assert longer.token_ids == reference.greedy(prompt, length + 20, ignore_eos=False, min_tokens=length + 10)
    assert longer.token_ids[: length - 1] == answer.token_ids[:-1]
    assert len(longer.token_ids) >= length + 10


def prompt_that_ends(reference: Reference, max_tokens: int = 64) -> tuple[list[int], int]:
    """A prompt whose greedy answer has the end of sequence in it, and how many tokens it has up to there."""
    for i in range(100):
        prompt = reference.encode(f"{i} pages")
        answer = reference.greedy(prompt, max_tokens, ignore_eos=False)
        if answer[-1] == reference.eos_token_id:
            return prompt, len(answer)
    raise AssertionError("no such prompt")


def test_stop_token(caller: Caller, reference: Reference) -> None:
    prompt = reference.encode("the fold")
    expected = reference.greedy(prompt, 30)
    answer = caller.generate(prompt, max_tokens=30, ignore_eos=True, stop_token_ids=[expected[12]])
    assert answer.token_ids == expected[: expected.index(expected[12]) + 1]
    assert answer.finish_reason == STOP


def test_a_stop_string_that_straddles_tokens(caller: Caller, reference: Reference, stack: Stack) -> None:
    """The text ends before it, the token ids that made it are kept, and the backend stops."""
    prompt = reference.encode("a leaf")
    expected = reference.greedy(prompt, 80)
    stop, end = straddling_stop(reference, expected)
    before = stack.memory_map().counters.generated_tokens
    answer = caller.generate(prompt, ignore_eos=True, stop=["never to be seen", stop])
    assert answer.token_ids == expected[:end]
    assert answer.text == reference.decode(expected[:end]).partition(stop)[0]
    assert answer.finish_reason == STOP
    check_usage(answer, len(prompt))
    stack.wait_until_idle()
    assert stack.memory_map().counters.generated_tokens - before < MAX_MODEL_LEN - len(prompt)


def straddling_stop(reference: Reference, token_ids: list[int]) -> tuple[str, int]:
    """Plain text that begins in one token and ends in the next, not there before; and the number of tokens up to it."""
    for end in range(20, len(token_ids)):
        first, second = (reference.decode([token_id]) for token_id in token_ids[end - 2 : end])
        stop = first[-1:] + second[:1]
        if len(stop) == 2 and stop.isalnum() and stop not in reference.decode(token_ids[: end - 1]):
            return stop, end
    raise AssertionError("no such text")


def test_one_of_several_sequences_ends_at_a_stop_string(caller: Caller, reference: Reference, stack: Stack) -> None:
    """The others go on."""
    request: dict[str, Any] = {
        "prompt": "many leaves",
        "n": 4,
        "seed": 5,
        "temperature": 1,
        "max_tokens": 80,
        "ignore_eos": True,
    }
    free = caller.generate(**request)
    stop, end = straddling_stop(reference, free.sequences[2].token_ids)
    answer = caller.generate(**request, stop=[stop])
    for index in range(4):
        text = free.sequences[index].text
        assert answer.sequences[index].text == text.partition(stop)[0]
        assert answer.sequences[index].finish_reason == (STOP if stop in text else LENGTH)
        count = len(answer.sequences[index].token_ids)
        assert answer.sequences[index].token_ids == free.sequences[index].token_ids[:count]
    assert len(answer.sequences[2].token_ids) == end
    check_usage(answer, len(reference.encode("many leaves")))
    stack.wait_until_idle()


def test_parallel_samples(caller: Caller, reference: Reference) -> None:
    """Three different sequences, the same three each time for the same seed."""
    request: dict[str, Any] = {
        "prompt": "sewn and bound",
        "n": 3,
        "seed": 11,
        "temperature": 1,
        "max_tokens": 30,
        "ignore_eos": True,
    }
    first = caller.generate(**request)
    again = caller.generate(**request)
    assert first.all_token_ids() == again.all_token_ids()
    assert len({tuple(token_ids) for token_ids in first.all_token_ids()}) == 3
    check_text(first, reference)
    check_usage(first, len(reference.encode("sewn and bound")))
    alone = caller.generate(**(request | {"n": 1}))
    assert alone.token_ids == first.all_token_ids()[0]
    other = caller.generate(**(request | {"seed": 12}))
    assert other.all_token_ids() != first.all_token_ids()


def test_without_a_seed_answers_differ(caller: Caller) -> None:
    request = SAMPLED | {"prompt": "again", "max_tokens": 30}
    assert caller.generate(**request).token_ids != caller.generate(**request).token_ids


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_the_smallest_and_the_greatest_seed(caller: Caller, seed: int) -> None:
    request = SAMPLED | {"prompt": "seed", "seed": seed, "max_tokens": 20}
    assert caller.generate(**request).token_ids == caller.generate(**request).token_ids


def test_seeded_sampling_is_independent_of_what_else_runs(caller: Caller) -> None:
    request: dict[str, Any] = {
        "prompt": "the reader",
        "seed": 3,
        "temperature": 1,
        "top_p": 0.9,
        "max_tokens": 60,
        "ignore_eos": True,
    }
    alone = caller.generate(**request)
    others = [
        {"prompt": f"other {i}" * (i + 1), "temperature": i % 3, "seed": i, "n": 1 + i % 2, "max_tokens": 20 + 10 * i}
        for i in range(6)
    ]
    answers = caller.generate_all([*others[:3], request, *others[3:]])
    assert answers[3].token_ids == alone.token_ids


def test_prefix_is_served_from_the_cache(caller: Caller, reference: Reference) -> None:
    """The second request with a prefix gets its full blocks, and what of one more is quicker copied than computed."""
    prefix = "In a house where books are bound there hangs a rule upon the wall: " * 3
    # Without the start token, with which every other prompt begins.
    prompts = [reference.encode(prefix + end)[1:] for end in ("one", "two", "two")]
    answers = [caller.generate(prompt, max_tokens=20, ignore_eos=True) for prompt in prompts]
    shared = next(index for index, pair in enumerate(zip(*prompts[:2], strict=False)) if len(set(pair)) > 1)
    assert shared % 16  # the last block is shared in part
    cached = [answer.usage.cached_tokens for answer in answers if answer.usage]
    assert cached[0] == 0
    # A tiny model computes a few tokens about as fast as it copies a block; which wins is measured anew by each step.
    assert cached[1] in (shared, shared // 16 * 16)
    assert cached[2] in (len(prompts[2]) - 1, (len(prompts[2]) - 1) // 16 * 16)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.token_ids == reference.greedy(prompt, 20)
        check_usage(answer, len(prompt))


def test_log_probabilities(caller: Caller, reference: Reference) -> None:
    prompt = reference.encode("a page is turned")
    answer = caller.generate(prompt, max_tokens=20, ignore_eos=True, logprobs=5)
    (sequence,) = answer.sequences.values()
    expected = reference.logprobs(prompt + sequence.token_ids)[len(prompt) - 1 : -1]
    assert len(sequence.logprobs) == 20
    for token_id, given, row in zip(sequence.token_ids, sequence.logprobs, expected, strict=True):
        assert given.logprob == pytest.approx(row[token_id].item(), abs=1e-3)
        assert given.top_token_ids[0] == token_id
        assert given.top_logprobs[0] == given.logprob
        assert list(given.top_token_ids) == row.topk(5).indices.tolist()
        assert list(given.top_logprobs) == pytest.approx(row.topk(5).values.tolist(), abs=1e-3)


def test_log_probabilities_only_where_asked_for(caller: Caller) -> None:
    """Also when another request of the same steps wants them."""
    plain, chosen, top = caller.generate_all(
        [{"prompt": "x", "max_tokens": 30, "ignore_eos": True, "temperature": 1, "seed": 1, "logprobs": logprobs}
         for logprobs in (None, 0, 3)]
    )  # fmt: skip
    assert plain.token_ids == chosen.token_ids == top.token_ids
    assert not plain.sequences[0].logprobs
    assert [len(each.top_token_ids) for each in chosen.sequences[0].logprobs] == [0] * 30
    assert [len(each.top_token_ids) for each in top.sequences[0].logprobs] == [3] * 30
    assert [a.logprob for a in chosen.sequences[0].logprobs] == pytest.approx(
        [b.logprob for b in top.sequences[0].logprobs], abs=1e-4
    )


def test_special_tokens_are_shown_where_asked_for(caller: Caller, reference: Reference) -> None:
    prompt, length = prompt_that_ends(reference)
    answer = caller.generate(prompt, max_tokens=length, skip_special_tokens=False)
    assert answer.text == reference.tokenizer.decode(answer.token_ids, skip_special_tokens=False)
    assert answer.text.endswith("<|end|>")


def test_the_request_keeps_the_name_it_was_given(caller: Caller) -> None:
    assert caller.generate("x", max_tokens=2, request_id="my-own").request_id == "my-own"
    assert caller.generate("x", max_tokens=2).request_id != caller.generate("x", max_tokens=2).request_id


def test_tokenize_and_list_models(stack: Stack, reference: Reference) -> None:
    tokenize = stack.caller.channel.unary_unary(
        "/octavo.v1.GenerationService/Tokenize",
        request_serializer=inference_pb2.TokenizeRequest.SerializeToString,
        response_deserializer=inference_pb2.TokenizeResponse.FromString,
    )
    answer = tokenize(inference_pb2.TokenizeRequest(prompt=inference_pb2.Prompt(text="Übermut 🐙")), timeout=10)
    assert list(answer.token_ids) == reference.encode("Übermut 🐙")
    assert answer.max_model_len == MAX_MODEL_LEN
    list_models = stack.caller.channel.unary_unary(
        "/octavo.v1.GenerationService/ListModels",
        request_serializer=inference_pb2.ListModelsRequest.SerializeToString,
        response_deserializer=inference_pb2.ListModelsResponse.FromString,
    )
    (model,) = list_models(inference_pb2.ListModelsRequest(), timeout=10).models
    assert (model.name, model.max_model_len, model.vocab_size) == ("tiny", MAX_MODEL_LEN, 384)
    assert model.num_blocks == stack.memory_map().num_blocks
