"""A real model, SmolLM2-135M in float32: greedy output, samples and beams are those of `transformers`."""

from __future__ import annotations

import functools

import pytest

from kvmanager.cost_model import Preemption
from kvmanager.spec import BeamParams, EarlyStopping
from kvmanager.step import Speeds
from tests.integration import cases
from tests.integration.cases import Case
from tests.integration.models import Model
from tests.integration.stack import Stack

pytestmark = [pytest.mark.demo_model, pytest.mark.timeout(300)]

NUM_TOKENS = 16

END_OF_TEXT, FULL_STOP, NEWLINE = 2, 30, 198


@functools.cache
def greedy(model: Model) -> list[Case]:
    return [cases.greedy(model, prompt, NUM_TOKENS) for prompt in model.prompts]


@functools.cache
def everything(model: Model) -> list[Case]:
    """Every decoding method; searches that come upon the end of a sentence, and one that goes on."""
    prompts = model.prompts
    never, first = BeamParams(3, 0.5, EarlyStopping.NEVER), BeamParams(5, 1.6, EarlyStopping.FIRST)
    return [
        cases.beams(model, prompts[0], NUM_TOKENS, BeamParams(4), stop_token_ids=(END_OF_TEXT,)),
        greedy(model)[7],
        cases.beams(model, prompts[5], 20, never, stop_token_ids=(END_OF_TEXT, FULL_STOP, NEWLINE)),
        cases.samples(model, prompts[4], 10, n=4, seed=0, temperature=0.5),
        cases.beams(model, prompts[6], NUM_TOKENS, first, n=2, stop_token_ids=(END_OF_TEXT, FULL_STOP)),
        cases.greedy(model, prompts[2], NUM_TOKENS, repetition_penalty=1.2),
        cases.best_of(model, prompts[3], 10, n=2, best_of=3, seed=1, temperature=0.5),
    ]


def test_greedy_together_and_again_from_the_cache(smollm2: Model) -> None:
    stack = Stack(smollm2, block_size=16)
    cases.run(stack, greedy(smollm2))
    cases.run(stack, [greedy(smollm2)[7]])
    assert stack.cached_tokens(0) >= 16


def test_greedy_across_preemption(smollm2: Model) -> None:
    stack = Stack(smollm2, block_size=16, num_blocks=12)
    cases.run(stack, greedy(smollm2))
    assert stack.manager.counters.preemptions > 0


@pytest.mark.slow
@pytest.mark.parametrize("block_size", [1, 16, 32])
def test_greedy_together_and_alone(smollm2: Model, block_size: int) -> None:
    cases.run(Stack(smollm2, block_size), greedy(smollm2))
    for request in greedy(smollm2):
        cases.run(Stack(smollm2, block_size), [request])


def test_every_method_together(smollm2: Model) -> None:
    cases.run(Stack(smollm2, block_size=16), everything(smollm2))


@pytest.mark.parametrize("preemption", [Preemption.SWAP, Preemption.RECOMPUTE])
def test_every_method_in_a_small_pool(smollm2: Model, preemption: Preemption) -> None:
    stack = Stack(smollm2, block_size=16, num_blocks=16, num_host_blocks=64, preemption=preemption)
    cases.run(stack, everything(smollm2))
    searches = [handle for handle, case in enumerate(everything(smollm2)) if "beam" in case.options]
    hows = [how for handle in searches for how in stack.preempted(handle)]
    assert set(hows) == {preemption.value}


@pytest.mark.slow
@pytest.mark.parametrize("length_penalty", [0.4, 1.0, 1.6])
@pytest.mark.parametrize("early_stopping", EarlyStopping)
def test_searches(smollm2: Model, length_penalty: float, early_stopping: EarlyStopping) -> None:
    params = [BeamParams(width, length_penalty, early_stopping) for width in (2, 4, 8)]
    stop = (END_OF_TEXT, FULL_STOP)
    searches = [
        cases.beams(smollm2, prompt, 16, each, stop_token_ids=stop)
        for prompt, each in zip(smollm2.prompts[5:], params, strict=True)
    ]
    clear = [case for case in searches if case.is_clear]
    if not clear:
        pytest.skip("the reference has a near tie in every search")
    cases.run(Stack(smollm2, block_size=16), clear)


def test_from_the_host_tier(smollm2: Model) -> None:
    fast_copies = Speeds(100.0, 1e6, 1e6, 1e6)
    stack = Stack(smollm2, block_size=16, num_blocks=3, num_host_blocks=16, speeds=fast_copies)
    for index in (7, 1, 2, 7):
        cases.run(stack, [greedy(smollm2)[index]])
    assert stack.manager.counters.host_cached_prompt_tokens == 16
