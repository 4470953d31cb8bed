"""Beam search through the whole stack finds the beams of `transformers`, ids and scores, whatever runs beside it."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from kvmanager.spec import BeamParams, EarlyStopping
from tests.integration import cases
from tests.integration.cases import Case, first_clear
from tests.integration.models import Model, random_prompt
from tests.integration.stack import FAST_COPIES, Stack

MAX_TOKENS = 24


@functools.cache
def ending_beams(model: Model, params: BeamParams, n: int | None = None, length: int = 15) -> Case:
    """A search that returns a beam which ended with a stop token."""

    def make(seed: int) -> Case:
        prompt = random_prompt(length, seed)
        stop = cases.reachable_stops(model, prompt, MAX_TOKENS, params.width)
        case = cases.beams(model, prompt, MAX_TOKENS, params, n, stop_token_ids=stop)
        ended = any(output.token_ids[-1] in stop for output in case.answer)
        return replace(case, is_clear=case.is_clear and ended)

    return first_clear(make)


@functools.cache
def endless_beams(model: Model, params: BeamParams, n: int | None = None, length: int = 15) -> Case:
    """A search in which every beam gets as long as it may."""
    return first_clear(lambda seed: cases.beams(model, random_prompt(length, seed), MAX_TOKENS, params, n))


@pytest.mark.parametrize("early_stopping", EarlyStopping)
@pytest.mark.parametrize("length_penalty", [-0.5, 0.4, 1.0, 1.3])
def test_searches_together(each_family: Model, length_penalty: float, early_stopping: EarlyStopping) -> None:
    """Every width in one batch."""
    searches = [
        ending_beams(each_family, BeamParams(width, length_penalty, early_stopping), length=10 + 3 * width)
        for width in (2, 3, 5, 8)
    ]
    cases.run(Stack(each_family, block_size=4), searches)


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_a_search_alone(each_family: Model, block_size: int) -> None:
    for case in (
        ending_beams(each_family, BeamParams(4)),
        endless_beams(each_family, BeamParams(4, 0.7, EarlyStopping.NEVER), n=3),
        endless_beams(each_family, BeamParams(6, 1.3), n=1),
    ):
        cases.run(Stack(each_family, block_size), [case])


def test_the_widest_search(tiny: Model) -> None:
    case = first_clear(lambda seed: cases.beams(tiny, random_prompt(18, seed), 10, BeamParams(32, 1.2)))
    cases.run(Stack(tiny, block_size=4), [case])


def test_a_search_of_one_token(tiny: Model) -> None:
    """The prompt's own row gives all the beams."""
    case = first_clear(lambda seed: cases.beams(tiny, random_prompt(18, seed), 1, BeamParams(5)))
    cases.run(Stack(tiny, block_size=4), [case])


def test_a_search_of_one_beam_is_greedy(tiny: Model) -> None:
    case = cases.greedy(tiny, tiny.prompts[3], MAX_TOKENS)
    stack = Stack(tiny, block_size=4)
    stack.submit(0, case.prompt, MAX_TOKENS, beam=BeamParams(1))
    stack.run()
    assert stack.tokens(0) == case.answer[0].token_ids


def test_a_search_that_starts_from_cached_blocks(tiny: Model) -> None:
    """Its own prompt, and the output of another request."""
    stack = Stack(tiny, block_size=4, speeds=FAST_COPIES)
    answer = cases.greedy(tiny, tiny.prompts[5], 15).answer[0].token_ids
    case = cases.beams(tiny, tiny.prompts[5] + answer, MAX_TOKENS, BeamParams(4))
    stack.generate([tiny.prompts[5]], 15)
    for _ in range(2):
        cases.run(stack, [case])
        assert stack.cached_tokens(0) >= len(tiny.prompts[5]) + 8


@pytest.mark.parametrize("early_stopping", EarlyStopping)
def test_penalties_and_a_least_length(tiny: Model, early_stopping: EarlyStopping) -> None:
    """They act on log probabilities, and need not leave them normalised."""
    params = BeamParams(4, 1.1, early_stopping)
    prompt = tiny.prompts[4]
    stop = cases.reachable_stops(tiny, prompt, MAX_TOKENS, 4)
    searches = [
        cases.beams(tiny, prompt, MAX_TOKENS, params, repetition_penalty=1.4),
        cases.beams(tiny, prompt, MAX_TOKENS, params, stop_token_ids=stop, min_tokens=MAX_TOKENS * 3 // 4),
        cases.beams(tiny, prompt, MAX_TOKENS, params, stop_token_ids=stop, min_tokens=8, repetition_penalty=0.8),
    ]
    cases.run(Stack(tiny, block_size=4), searches)
    assert len({tuple(case.answer[0].token_ids) for case in searches}) == 3


def test_mixed_with_every_other_method(family: Model) -> None:
    cases.run(Stack(family, block_size=4), everything(family))


def test_mixed_with_others_that_come_one_after_the_other(tiny: Model) -> None:
    """Each step finds the searches at another place, and most others in prefill."""
    stack = Stack(tiny, block_size=4, max_batched_tokens=24, max_sequences=24)
    mixture = everything(tiny)
    for handle, case in enumerate(mixture):
        case.submit(stack, handle)
        stack.step()
        stack.step()
    stack.run()
    for handle, case in enumerate(mixture):
        case.check(stack, handle)


@functools.cache
def everything(model: Model) -> list[Case]:
    """Every decoding method."""
    prompts = model.prompts
    return [
        endless_beams(model, BeamParams(4)),
        cases.greedy(model, prompts[5], MAX_TOKENS),
        first_clear(lambda seed: cases.samples(model, prompts[3], MAX_TOKENS, seed=seed)),
        ending_beams(model, BeamParams(3, 0.6, EarlyStopping.NEVER), n=2),
        first_clear(lambda seed: cases.samples(model, prompts[2], MAX_TOKENS, n=4, seed=seed)),
        cases.greedy(model, prompts[6], MAX_TOKENS, repetition_penalty=1.3),
        first_clear(lambda seed: cases.best_of(model, prompts[1], MAX_TOKENS, n=2, best_of=5, seed=seed)),
        ending_beams(model, BeamParams(6, 1.5, EarlyStopping.FIRST)),
    ]
