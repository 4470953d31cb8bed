"""The requests of the throughput benchmarks: the same for every system, other tokens in each round."""

from __future__ import annotations

import random

import pytest

from benchmarks.request_sets import LONGEST, SETS, request_set, warm_up_set


@pytest.mark.parametrize("name", SETS)
def test_the_seed_decides_the_requests(name: str) -> None:
    seed = random.getrandbits(30)
    assert request_set(name, seed) == request_set(name, seed), seed
    assert warm_up_set(seed) == warm_up_set(seed), seed


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("count", [None, 5])
def test_rounds_differ_in_their_tokens_alone(name: str, count: int | None) -> None:
    seed = random.getrandbits(30)
    one, other = request_set(name, seed, count), request_set(name, seed + 1, count)
    assert [(len(each.prompt), each.output_tokens, each.repeated) for each in one.requests] == [
        (len(each.prompt), each.output_tokens, each.repeated) for each in other.requests
    ]
    assert not {tuple(each.prompt) for each in one.requests} & {tuple(each.prompt) for each in other.requests}, seed


@pytest.mark.parametrize("count", [1, 7, 64])
@pytest.mark.parametrize(("name", "prompt", "output"), [("alpaca", 19, 58), ("sharegpt", 161, 338)])
def test_lengths_have_the_published_means(name: str, prompt: int, output: int, count: int) -> None:
    requests = request_set(name, 0, count)
    assert (requests.prompt_tokens, requests.output_tokens) == (prompt * count, output * count)
    lengths = [length for each in requests.requests for length in (len(each.prompt), each.output_tokens)]
    assert min(lengths) >= 1
    assert max(lengths) <= LONGEST
    assert requests.at_once


def test_a_set_has_long_and_short_requests() -> None:
    outputs = [each.output_tokens for each in request_set("sharegpt", 0).requests]
    assert max(outputs) > 2 * sum(outputs) / len(outputs)
    assert min(outputs) < 50


def test_prompts_share_what_the_set_says() -> None:
    prompts = [each.prompt for each in request_set("shared-prefix", random.getrandbits(30)).requests]
    assert len(prompts) == 64
    assert len({tuple(prompt[:512]) for prompt in prompts}) == 1
    assert len({tuple(prompt[512:]) for prompt in prompts}) == 64
    assert {len(prompt) for prompt in prompts} == {544}


def test_each_prompt_for_the_first_token_is_sent_twice_in_a_row() -> None:
    requests = request_set("ttft", random.getrandbits(30)).requests
    assert [each.repeated for each in requests] == [False, True] * (len(requests) // 2)
    for new, repeated in zip(requests[::2], requests[1::2], strict=True):
        assert new.prompt == repeated.prompt
    assert len({each.prompt[0] for each in requests[::2]}) > 1


@pytest.mark.parametrize("name", SETS)
def test_tokens_stay_in_the_vocabulary(name: str) -> None:
    assert max(max(each.prompt) for each in request_set(name, 1, 4, vocab_size=300).requests) < 300


def test_an_unknown_set() -> None:
    with pytest.raises(ValueError, match="'alpacas'; there are alpaca, sharegpt"):
        request_set("alpacas", 0)
