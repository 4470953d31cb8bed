"""Whatever is decoded however, the answers are those of `transformers` where memory is short in every step."""

from __future__ import annotations

import pytest

from tests.integration import cases
from tests.integration.models import Model
from tests.integration.stack import Stack
from tests.scarce_memory import scarce

BLOCK_SIZE = 4


@pytest.mark.parametrize(("max_tokens", "max_sequences"), [(3, 2), (17, 5)])
def test_every_decoding_method_in_parts(tiny: Model, max_tokens: int, max_sequences: int) -> None:
    stack = Stack(tiny, BLOCK_SIZE)
    with scarce(tiny.executor(BLOCK_SIZE), max_tokens, max_sequences) as runner:
        cases.run(stack, cases.every_method(tiny))
    assert max(runner.sizes) <= max_tokens


def test_a_prefix_that_is_shared_within_a_step_in_parts(tiny: Model) -> None:
    prefix = tiny.prompts[7][:40]
    requests = [cases.greedy(tiny, [*prefix, *tiny.prompts[number][:5]], 12) for number in range(1, 6)]
    stack = Stack(tiny, BLOCK_SIZE, max_batched_tokens=256)
    with scarce(tiny.executor(BLOCK_SIZE), 10, 64):
        cases.run(stack, [request for request in requests if request.is_clear])
    assert max(stack.cached_tokens(handle) for handle in stack.answers) == 40
