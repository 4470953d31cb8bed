"""Two ranks, each a process with half of every layer, answer as `transformers` does, token for token."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from executor.step import BatchRefused, StepBatch
from kvmanager.cost_model import Preemption
from tests.integration import cases
from tests.integration.models import FAMILIES, Model
from tests.integration.ranks import BLOCK_SIZE, Parallel, on_ranks, run_every_method
from tests.integration.stack import Stack

ON_EACH_RANK = re.compile(r"norm|position|_out\.bias")
"""Parameters that are small."""


@pytest.fixture(scope="module", params=FAMILIES)
def parallel(request: pytest.FixtureRequest, tiny_models: dict[str, Model]) -> Iterator[Parallel]:
    with on_ranks(tiny_models[request.param], size=2) as parallel:
        yield parallel


@pytest.mark.parametrize("preemption", [Preemption.SWAP, Preemption.RECOMPUTE])
def test_every_method_in_one_small_pool(parallel: Parallel, preemption: Preemption) -> None:
    run_every_method(parallel, preemption)


def test_a_prefix_that_is_cached_on_both_ranks(parallel: Parallel) -> None:
    model = parallel.model
    prompt, answer = model.prompts[7], cases.every_method(model)[7].answer[0].token_ids
    stack = Stack(parallel.on_ranks, BLOCK_SIZE)
    for _ in range(2):
        assert stack.generate([prompt], len(answer)) == [answer]
    assert stack.cached_tokens(0) >= len(prompt) - BLOCK_SIZE


def test_a_batch_that_is_refused_is_refused_before_the_others_hear_of_it(parallel: Parallel) -> None:
    executor = parallel.executor
    epoch = executor.epoch + 1
    executor.step(StepBatch(epoch, 1))
    with pytest.raises(BatchRefused, match="unknown sequence 9"):
        executor.step(StepBatch(epoch, 2, row_sequence_ids=[9], row_num_tokens=[1]))
    executor.step(StepBatch(epoch, 2))
    case = cases.every_method(parallel.model)[1]
    assert Stack(parallel.on_ranks, BLOCK_SIZE).generate([case.prompt], 24) == [case.answer[0].token_ids]


def test_each_rank_has_half_of_the_weights_and_of_the_blocks(parallel: Parallel) -> None:
    info, config = parallel.executor.info, parallel.model.transformers.config
    kv_heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    num_numbers = 2 * config.num_hidden_layers * kv_heads * config.hidden_size // config.num_attention_heads
    assert info.bytes_per_block == 4 * BLOCK_SIZE * num_numbers
    assert info.num_blocks == info.num_host_blocks == (4 << 20) // info.bytes_per_block
    assert parallel.executor._runner.arena.data.nbytes == info.num_blocks * info.bytes_per_block // 2
    decoder = parallel.executor._runner.decoder
    sizes = {name: parameter.numel() for name, parameter in decoder.named_parameters()}
    on_each = sum(size for name, size in sizes.items() if ON_EACH_RANK.search(name))
    assert 2 * (sum(sizes.values()) - on_each) + on_each == parallel.model.transformers.num_parameters()
