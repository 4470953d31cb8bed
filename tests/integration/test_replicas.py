"""Several executors of one model: where a request runs, and whether its executor survives, changes no token."""

from __future__ import annotations

import functools

import pytest

from kvmanager.cost_model import Preemption
from kvmanager.spec import BeamParams
from tests.integration import cases
from tests.integration.cases import Case, first_clear
from tests.integration.models import Model, random_prompt
from tests.integration.stack import FAST_COPIES, Stack

MAX_TOKENS = 24
NAMES = ["executor-0", "executor-1"]


@functools.cache
def everything(model: Model) -> list[Case]:
    """Every decoding method."""
    prompts = model.prompts
    return [
        cases.greedy(model, prompts[6], MAX_TOKENS, repetition_penalty=1.3),
        first_clear(lambda seed: cases.beams(model, random_prompt(15, seed), MAX_TOKENS, BeamParams(4))),
        cases.greedy(model, prompts[5], MAX_TOKENS),
        first_clear(lambda seed: cases.samples(model, prompts[2], MAX_TOKENS, n=4, seed=seed)),
        first_clear(lambda seed: cases.best_of(model, prompts[1], MAX_TOKENS, n=2, best_of=5, seed=seed)),
        first_clear(lambda seed: cases.samples(model, prompts[3], MAX_TOKENS, seed=seed)),
        first_clear(lambda seed: cases.beams(model, random_prompt(9, seed), MAX_TOKENS, BeamParams(6, 1.5), n=2)),
        cases.greedy(model, prompts[7], MAX_TOKENS),
    ]


def submit_all(stack: Stack, requests: list[Case]) -> None:
    for handle, case in enumerate(requests):
        case.submit(stack, handle)


def check_all(stack: Stack, requests: list[Case]) -> None:
    for handle, case in enumerate(requests):
        case.check(stack, handle)


def num_rows(stack: Stack, name: str, first_batch: int = 0) -> int:
    return sum(len(batch.row_sequence_ids) for each, batch in stack.batches[first_batch:] if each == name)


def test_two_share_the_work(family: Model) -> None:
    stack = Stack(family, block_size=4, num_executors=2)
    cases.run(stack, everything(family))
    assert all(num_rows(stack, name) > 50 for name in NAMES)


@pytest.mark.parametrize("num_steps", [1, 2, 4, 9, 20])
@pytest.mark.parametrize("lost", NAMES)
def test_one_is_lost(tiny: Model, lost: str, num_steps: int) -> None:
    """Prompts in computation, fresh forks, beams: whatever ran there goes on with the other."""
    requests = everything(tiny)
    stack = Stack(tiny, block_size=4, num_executors=2, max_batched_tokens=32, max_sequences=32)
    submit_all(stack, requests)
    for _ in range(num_steps):
        stack.step()
    assert num_rows(stack, lost) > 0
    stack.lose(lost)
    num_batches = len(stack.batches)
    stack.run()
    check_all(stack, requests)
    assert num_rows(stack, lost, num_batches) == 0
    assert stack.manager.counters.preemptions > 0


@pytest.mark.parametrize("preemption", Preemption)
def test_both_are_lost_and_come_back_in_small_pools(tiny: Model, preemption: Preemption) -> None:
    """First one and then the other, each empty when it returns."""
    requests = everything(tiny)
    stack = Stack(tiny, block_size=4, num_blocks=60, num_host_blocks=256, num_executors=2, preemption=preemption)
    submit_all(stack, requests)
    for index in (0, 1, 0):
        for _ in range(7):
            stack.step()
        stack.lose(NAMES[index])
        for _ in range(2):
            stack.step()
        stack.attach(index)
    stack.run()
    check_all(stack, requests)


def test_the_only_one_is_lost_and_comes_back(tiny: Model) -> None:
    requests = everything(tiny)
    stack = Stack(tiny, block_size=4)
    submit_all(stack, requests)
    for _ in range(3):
        for _ in range(4):
            stack.step()
        stack.lose(NAMES[0])
        stack.step()
        stack.attach(0)
    stack.run()
    check_all(stack, requests)


def test_a_request_goes_where_its_prefix_is(tiny: Model) -> None:
    stack = Stack(tiny, block_size=4, num_executors=2, speeds=FAST_COPIES)
    request = cases.greedy(tiny, tiny.prompts[7], MAX_TOKENS)
    cases.run(stack, [request])
    (home,) = {name for name, _ in stack.batches}
    num_batches = len(stack.batches)
    cases.run(stack, [request])
    assert {name for name, _ in stack.batches[num_batches:]} == {home}
    assert stack.cached_tokens(0) == len(request.prompt) - 1
