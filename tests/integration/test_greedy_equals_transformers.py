"""Whatever the memory manager does (batching, block sizes, prefix hits, preemption), greedy output is that of
`transformers`, token for token."""

from __future__ import annotations

import pytest

from tests.integration.conftest import Reference
from tests.integration.stack import Stack

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("block_size", [1, 16, 32])
def test_batched_together_and_then_alone_with_a_prefix_hit(reference: Reference, block_size: int) -> None:
    stack = Stack(reference.path, block_size)
    assert stack.generate(reference.prompts, reference.num_tokens) == reference.outputs
    longest = max(range(len(reference.prompts)), key=lambda i: len(reference.prompts[i]))
    for index in (0, longest):
        assert stack.generate([reference.prompts[index]], reference.num_tokens) == [reference.outputs[index]]
        expected_hit = (len(reference.prompts[index]) - 1) // block_size * block_size
        assert stack.cached_tokens[0] == expected_hit
    assert stack.cached_tokens[0] > 0 or block_size == 32


@pytest.mark.parametrize(("block_size", "indices"), [(1, (0, 3, 6)), (16, (1, 4, 7)), (32, (2, 5))])
def test_alone_without_a_prefix_hit(reference: Reference, block_size: int, indices: tuple[int, ...]) -> None:
    for index in indices:
        stack = Stack(reference.path, block_size)
        assert stack.generate([reference.prompts[index]], reference.num_tokens) == [reference.outputs[index]]
        assert stack.cached_tokens[0] == 0


@pytest.mark.parametrize("block_size", [1, 16, 32])
def test_across_a_forced_preemption(reference: Reference, block_size: int) -> None:
    """Every prompt fits, but not with all their answers."""
    ends = [-(-(len(prompt) + reference.num_tokens - 1) // block_size) for prompt in reference.prompts]
    starts = [-(-len(prompt) // block_size) for prompt in reference.prompts]
    num_blocks = max(max(ends), (sum(starts) + sum(ends)) // 2 - 1)
    stack = Stack(reference.path, block_size, num_blocks)
    assert stack.generate(reference.prompts, reference.num_tokens) == reference.outputs
    assert stack.manager.counters.preemptions > 0


def test_a_turn_of_a_conversation_continues_from_cached_output(reference: Reference) -> None:
    stack = Stack(reference.path, block_size=4)
    prompt, output = reference.prompts[4], reference.outputs[4]
    stack.generate([prompt], reference.num_tokens - 6)
    assert stack.generate([prompt + output[:-6]], 6) == [output[-6:]]
    assert stack.cached_tokens[0] >= len(prompt)


def test_n_samples_have_the_tokens_that_each_would_have_alone(tiny: Reference) -> None:
    """Seeded samples do not depend on what shares their batch and their blocks, nor on preemption."""
    together = Stack(tiny.path, block_size=4, num_blocks=60)
    for index, prompt in enumerate(tiny.prompts):
        together.submit(index, prompt, 20, n=3, temperature=1.0, seed=index)
    together.run()
    assert together.manager.counters.preemptions > 0
    assert together.manager.counters.copied_blocks > 0
    for index in (0, 3, 7):
        alone = Stack(tiny.path, block_size=16)
        alone.submit(index, tiny.prompts[index], 20, n=3, temperature=1.0, seed=index)
        alone.run()
        outputs = [alone.output[index, sample] for sample in range(3)]
        assert outputs == [together.output[index, sample] for sample in range(3)]
        assert len({tuple(output) for output in outputs}) == 3
