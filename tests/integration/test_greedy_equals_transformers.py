"""Whatever the memory manager does (batching, block sizes, prefix hits, preemption), greedy output is that of
`transformers`, token for token."""

from __future__ import annotations

import functools

import pytest

from tests.integration.models import Model
from tests.integration.reference import CLEAR, Output, greedy
from tests.integration.stack import FAST_COPIES, Stack

pytestmark = pytest.mark.timeout(300)

NUM_TOKENS = 24


@functools.lru_cache
def reference(model: Model) -> list[Output]:
    """How `transformers` continues each prompt alone."""
    return [greedy(model, prompt, NUM_TOKENS) for prompt in model.prompts]


def expected(model: Model) -> list[list[int]]:
    if min(output.margin for output in reference(model)) < CLEAR:
        pytest.skip("the reference has a near tie")
    return [output.token_ids for output in reference(model)]


def test_each_family(family: Model) -> None:
    assert Stack(family).generate(family.prompts, NUM_TOKENS) == expected(family)


@pytest.mark.parametrize("block_size", [1, 16, 32])
def test_batched_together_and_then_alone_with_a_prefix_hit(tiny: Model, block_size: int) -> None:
    outputs = expected(tiny)
    stack = Stack(tiny, block_size)
    assert stack.generate(tiny.prompts, NUM_TOKENS) == outputs
    longest = max(range(len(tiny.prompts)), key=lambda index: len(tiny.prompts[index]))
    for index in (0, longest):
        assert stack.generate([tiny.prompts[index]], NUM_TOKENS) == [outputs[index]]
        assert stack.cached_tokens(0) >= (len(tiny.prompts[index]) - 1) // block_size * block_size
    assert stack.cached_tokens(0) > 0 or block_size == 32


@pytest.mark.parametrize(("block_size", "indices"), [(1, (0, 3, 6)), (16, (1, 4, 7)), (32, (2, 5))])
def test_alone_without_a_prefix_hit(tiny: Model, block_size: int, indices: tuple[int, ...]) -> None:
    outputs = expected(tiny)
    for index in indices:
        stack = Stack(tiny, block_size)
        assert stack.generate([tiny.prompts[index]], NUM_TOKENS) == [outputs[index]]
        assert stack.cached_tokens(0) == 0


@pytest.mark.parametrize("block_size", [1, 16, 32])
def test_across_a_forced_preemption(tiny: Model, block_size: int) -> None:
    """Every prompt fits, but not with all their answers."""
    outputs = expected(tiny)
    ends = [-(-(len(prompt) + NUM_TOKENS - 1) // block_size) for prompt in tiny.prompts]
    starts = [-(-len(prompt) // block_size) for prompt in tiny.prompts]
    stack = Stack(tiny, block_size, num_blocks=max(max(ends), (sum(starts) + sum(ends)) // 2 - 1))
    assert stack.generate(tiny.prompts, NUM_TOKENS) == outputs
    assert stack.manager.counters.preemptions > 0
    assert stack.manager.counters.preemptions_by_swap == 0


def test_a_turn_of_a_conversation_continues_from_cached_output(tiny: Model) -> None:
    stack = Stack(tiny, block_size=4, speeds=FAST_COPIES)
    prompt, output = tiny.prompts[4], expected(tiny)[4]
    stack.generate([prompt], NUM_TOKENS - 6)
    assert stack.generate([prompt + output[:-6]], 6) == [output[-6:]]
    assert stack.cached_tokens(0) >= len(prompt)
