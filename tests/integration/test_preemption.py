"""Preemption, by swap or by recomputation, changes no answer of any decoding method."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from kvmanager.cost_model import Preemption
from kvmanager.spec import BeamParams, EarlyStopping
from kvmanager.step import Speeds
from tests.integration import cases
from tests.integration.cases import Case
from tests.integration.models import Model
from tests.integration.stack import Stack

MAX_TOKENS = 24


@dataclass(frozen=True)
class Way:
    """How the KV manager is to preempt.

    Attributes:
        speeds: what it is told of the executor; None: what that measures.
        hows: in how many ways it may.
    """

    preemption: Preemption
    hows: set[str]
    speeds: Speeds | None = None


WAYS = {
    "swap": Way(Preemption.SWAP, {"swap"}),
    "recompute": Way(Preemption.RECOMPUTE, {"recompute"}),
    "auto as measured": Way(Preemption.AUTO, {"swap", "recompute"}),
    "auto where copies are fast": Way(Preemption.AUTO, {"swap"}, Speeds(100.0, 1e6, 1e6, 1e6)),
    "auto where computing is fast": Way(Preemption.AUTO, {"recompute"}, Speeds(1e6, 100.0, 100.0, 100.0)),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    return WAYS[request.param]


def small_stack(model: Model, way: Way, block_size: int, num_tokens: int, **options: int) -> Stack:
    """One whose pool holds so many tokens, beside a host tier that holds everything."""
    return Stack(
        model,
        block_size,
        num_blocks=num_tokens // block_size,
        num_host_blocks=1024 // block_size,
        preemption=way.preemption,
        speeds=way.speeds,
        **options,
    )


def check_counters(stack: Stack, way: Way, handles: Iterable[int]) -> None:
    """Some request was preempted, and all of them in the way that was asked for."""
    hows = [how for handle in handles for how in stack.preempted(handle)]
    counters = stack.manager.counters
    assert hows
    assert set(hows) <= way.hows
    assert counters.preemptions == len(hows)
    assert counters.preemptions_by_swap == hows.count("swap")
    if hows.count("swap"):
        assert counters.swapped_out_blocks > 0


# Requests


@functools.cache
def greedy_requests(model: Model) -> list[Case]:
    return [cases.greedy(model, prompt, MAX_TOKENS) for prompt in model.prompts]


@functools.cache
def sampling_requests(model: Model) -> list[Case]:
    return [cases.clear_samples(model, prompt, MAX_TOKENS, n=3) for prompt in model.prompts]


@functools.cache
def search_behind_others(model: Model) -> list[Case]:
    params = BeamParams(5, 0.8, EarlyStopping.NEVER)
    return [
        *(cases.greedy(model, prompt, 40) for prompt in model.prompts[2:6]),
        cases.clear_search(model, 21, MAX_TOKENS, params),
    ]


@functools.cache
def wide_searches(model: Model) -> list[Case]:
    return [cases.clear_search(model, length, MAX_TOKENS, BeamParams(6)) for length in (9, 14, 22)]


# Preempted


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_greedy(each_family: Model, way: Way, block_size: int) -> None:
    stack = small_stack(each_family, way, block_size, num_tokens=256)
    cases.run(stack, greedy_requests(each_family))
    check_counters(stack, way, range(8))


@pytest.mark.parametrize("block_size", [4, 16])
def test_seeded_samples(tiny: Model, way: Way, block_size: int) -> None:
    """They depend neither on who shares their batch and their blocks, nor on preemption."""
    stack = small_stack(tiny, way, block_size, num_tokens=256)
    cases.run(stack, sampling_requests(tiny))
    check_counters(stack, way, range(8))


@pytest.mark.parametrize("block_size", [4, 16])
def test_beams(each_family: Model, way: Way, block_size: int) -> None:
    """The group is the last to come, and so the first to go. It is resumed, as often as it takes."""
    stack = small_stack(each_family, way, block_size, num_tokens=18 * 16)
    cases.run(stack, search_behind_others(each_family))
    check_counters(stack, way, range(5))
    assert stack.preempted(4)


def test_searches_take_turns(tiny: Model, way: Way) -> None:
    """Each is large enough for most of the pool."""
    stack = small_stack(tiny, way, block_size=4, num_tokens=4 * 47)
    cases.run(stack, wide_searches(tiny))
    check_counters(stack, way, range(3))


@pytest.mark.parametrize("num_blocks", [60, 72, 88])
def test_every_method_in_one_small_pool(tiny: Model, way: Way, num_blocks: int) -> None:
    stack = small_stack(tiny, way, block_size=4, num_tokens=4 * num_blocks, max_batched_tokens=32, max_sequences=32)
    cases.run(stack, cases.every_method(tiny))
    check_counters(stack, way, range(8))
    if way.hows == {"swap"}:
        assert stack.manager.counters.swapped_in_blocks > 0


def test_a_host_tier_that_is_too_small(tiny: Model) -> None:
    """Who does not fit there is computed again."""
    requests = greedy_requests(tiny)[::-1]  # the last one, which gives way first, is the shortest
    stack = Stack(tiny, 4, num_blocks=64, num_host_blocks=12, preemption=Preemption.SWAP)
    cases.run(stack, requests)
    hows = [how for handle in range(8) for how in stack.preempted(handle)]
    assert set(hows) == {"swap", "recompute"}


def test_preempted_while_prompts_are_computed_in_chunks(tiny: Model, way: Way) -> None:
    stack = small_stack(tiny, way, block_size=4, num_tokens=160, max_batched_tokens=10, max_sequences=8)
    cases.run(stack, greedy_requests(tiny))
    check_counters(stack, way, range(8))
