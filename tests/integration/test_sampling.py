"""Penalties, seeded sampling and best_of through the whole stack, against what `transformers` computes."""

from __future__ import annotations

import functools
from collections import Counter

import pytest
import torch
import transformers

from kvmanager.cost_model import Preemption
from tests.integration import cases, reference
from tests.integration.cases import Case, first_clear
from tests.integration.models import Model
from tests.integration.stack import Stack

MAX_TOKENS = 24


def small_stack(model: Model, preemption: Preemption) -> Stack:
    return Stack(model, block_size=4, num_blocks=64, num_host_blocks=256, preemption=preemption)


# Penalties


@functools.cache
def penalised(model: Model) -> list[Case]:
    """Repeated tokens made rarer, and more frequent."""
    return [
        cases.greedy(model, prompt, MAX_TOKENS, repetition_penalty=penalty)
        for prompt, penalty in zip(model.prompts, (1.3, 1.1, 0.8, 1.5, 1.0, 1.3, 1.2, 2.0), strict=True)
    ]


def test_repetition_penalty(family: Model) -> None:
    cases.run(Stack(family, block_size=4), penalised(family))
    unpenalised = [reference.greedy(family, prompt, MAX_TOKENS).token_ids for prompt in family.prompts]
    changed = [case.answer[0].token_ids != output for case, output in zip(penalised(family), unpenalised, strict=True)]
    assert sum(changed) >= 5


@pytest.mark.parametrize("preemption", Preemption)
def test_repetition_penalty_across_preemption(tiny: Model, preemption: Preemption) -> None:
    """What a sequence holds already is known again where it goes on."""
    stack = small_stack(tiny, preemption)
    cases.run(stack, penalised(tiny))
    assert stack.manager.counters.preemptions > 0


class OutputPenalties(transformers.LogitsProcessor):
    """logit - count * frequency - (count > 0) * presence, over the tokens of the output."""

    def __init__(self, prompt_length: int, presence: float, frequency: float) -> None:
        self._prompt_length = prompt_length
        self._presence = presence
        self._frequency = frequency

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        for token, count in Counter(input_ids[0, self._prompt_length :].tolist()).items():
            scores[0, token] -= count * self._frequency + self._presence
        return scores


@pytest.mark.parametrize(("presence", "frequency"), [(1.5, 0.0), (0.0, 0.7), (0.5, 0.25), (-1.0, 0.0)])
def test_presence_and_frequency_penalties(each_family: Model, presence: float, frequency: float) -> None:
    stack = small_stack(each_family, Preemption.SWAP)
    expected = []
    for handle, prompt in enumerate(each_family.prompts):
        penalties = OutputPenalties(len(prompt), presence, frequency)
        processors = transformers.LogitsProcessorList([penalties])
        expected.append(reference.greedy(each_family, prompt, MAX_TOKENS, logits_processor=processors))
        stack.submit(handle, prompt, MAX_TOKENS, presence_penalty=presence, frequency_penalty=frequency)
    stack.run()
    assert min(output.margin for output in expected) >= reference.CLEAR
    assert [stack.tokens(handle) for handle in range(8)] == [output.token_ids for output in expected]


def test_bias_and_least_length(tiny: Model) -> None:
    prompt = tiny.prompts[3]
    plain = reference.greedy(tiny, prompt, MAX_TOKENS).token_ids
    bias = {plain[0]: -5.0, plain[5]: -3.0, 7: 2.5}
    biased = reference.greedy(tiny, prompt, MAX_TOKENS, sequence_bias={(token,): each for token, each in bias.items()})
    later = reference.greedy(tiny, prompt, MAX_TOKENS, eos_token_id=[plain[2]], min_new_tokens=6).token_ids
    stop = (plain[2], later[10])
    longer = reference.greedy(tiny, prompt, MAX_TOKENS, eos_token_id=list(stop), min_new_tokens=6)
    stack = Stack(tiny, block_size=4)
    stack.submit(0, prompt, MAX_TOKENS, logit_bias=bias)
    stack.submit(1, prompt, MAX_TOKENS, stop_token_ids=stop, min_tokens=6)
    stack.run()
    assert stack.tokens(0) == biased.token_ids != plain
    assert stack.tokens(1) == longer.token_ids
    assert 6 < len(longer.token_ids) < MAX_TOKENS


# Samples


@functools.cache
def seeded(model: Model) -> list[Case]:
    def clear(prompt: list[int], n: int) -> Case:
        return first_clear(lambda seed: cases.samples(model, prompt, MAX_TOKENS, n, seed))

    return [clear(prompt, n) for prompt, n in zip(model.prompts, (1, 3, 1, 2, 4, 1, 2, 1), strict=True)]


def test_seeded_samples_are_those_of_the_references_probabilities(family: Model) -> None:
    cases.run(Stack(family, block_size=4), seeded(family))


@pytest.mark.parametrize("temperature", [0.3, 1.7])
def test_temperatures(tiny: Model, temperature: float) -> None:
    cases.run(
        Stack(tiny, block_size=4),
        [
            first_clear(
                lambda seed, prompt=prompt: cases.samples(  # type: ignore[misc]
                    tiny, prompt, MAX_TOKENS, n=2, seed=seed, temperature=temperature
                )
            )
            for prompt in tiny.prompts[:4]
        ],
    )


@pytest.mark.parametrize("block_size", [1, 16])
def test_neighbours_change_nothing(tiny: Model, block_size: int) -> None:
    """Alone, with some, and with all the others."""
    requests = seeded(tiny)
    for chosen in ([requests[4]], requests[3:6], requests[4:]):
        cases.run(Stack(tiny, block_size), chosen)


@pytest.mark.parametrize("preemption", Preemption)
def test_preemption_changes_nothing(tiny: Model, preemption: Preemption) -> None:
    stack = small_stack(tiny, preemption)
    cases.run(stack, seeded(tiny))
    assert stack.manager.counters.preemptions > 0


# The best of several


def best_of(model: Model, index: int, n: int, count: int, *, stopping: bool = False) -> Case:
    """If need be with a stop token that the first of the samples comes upon."""
    prompt = model.prompts[index]

    def make(seed: int) -> Case:
        stop = (reference.sample(model, prompt, MAX_TOKENS, seed=seed).token_ids[9],) if stopping else ()
        return cases.best_of(model, prompt, MAX_TOKENS, n, count, seed, stop_token_ids=stop)

    return first_clear(make)


@functools.cache
def ranked(model: Model) -> list[Case]:
    """Some end with a stop token: their mean is over fewer tokens."""
    return [
        best_of(model, 1, 1, 4),
        best_of(model, 3, 3, 8),
        best_of(model, 5, 4, 5, stopping=True),
        best_of(model, 2, 5, 6, stopping=True),
        best_of(model, 6, 1, 2),
    ]


def test_best_of_is_the_references_ranking(family: Model) -> None:
    requests = ranked(family)
    cases.run(Stack(family, block_size=4), requests)
    lengths = {len(output.token_ids) for case in requests for output in case.answer}
    assert len(lengths) > 1, "no sample came upon a stop token"


@pytest.mark.parametrize("preemption", Preemption)
def test_scores_survive_preemption(tiny: Model, preemption: Preemption) -> None:
    stack = Stack(tiny, block_size=4, num_blocks=68, num_host_blocks=256, preemption=preemption)
    cases.run(stack, ranked(tiny))
    assert stack.manager.counters.preemptions > 0
