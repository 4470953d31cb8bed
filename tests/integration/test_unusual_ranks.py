"""Models that are cut into parts in other ways, and more ranks than two, answer as `transformers` does."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue

import pytest
import torch
import transformers

from executor.step import StepBatch
from kvmanager.cost_model import Preemption
from services.executor.loading import check, load
from services.executor.ranks import RankDeath, RankProcesses
from tests.integration import cases
from tests.integration.models import VOCAB_SIZE, Model, make_tiny
from tests.integration.ranks import on_ranks, ranks_config, run_every_method
from tests.integration.stack import Stack

pytestmark = pytest.mark.slow

UNUSUAL = {
    "a key/value head that both have, an odd vocabulary, a tied head": transformers.LlamaConfig(
        vocab_size=VOCAB_SIZE + 1,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        max_position_embeddings=256,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
    ),
    "projected embeddings, norms behind": transformers.OPTConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        word_embed_proj_dim=16,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
        do_layer_norm_before=False,
    ),
}


@pytest.mark.parametrize("config", UNUSUAL.values(), ids=UNUSUAL)
def test_unusual_models(config: transformers.PreTrainedConfig, tmp_path: Path) -> None:
    with on_ranks(make_tiny(config, tmp_path), size=2) as parallel:
        run_every_method(parallel, Preemption.SWAP)


def test_more_ranks_than_key_value_heads(tiny: Model) -> None:
    with on_ranks(tiny, size=4) as parallel:
        run_every_method(parallel, Preemption.SWAP)


@pytest.mark.demo_model
@pytest.mark.timeout(300)
def test_the_demo_model_on_three_ranks(smollm2: Model) -> None:
    """It has 9 attention heads."""
    with on_ranks(smollm2, size=3, block_size=16) as parallel:
        cases.run(Stack(parallel.on_ranks, 16), [cases.greedy(smollm2, prompt, 16) for prompt in smollm2.prompts])


def test_a_rank_in_which_a_step_fails_ends_and_says_why(tiny: Model) -> None:
    deaths: SimpleQueue[RankDeath] = SimpleQueue()
    config = ranks_config(tiny, size=2)
    threads = torch.get_num_threads()
    processes = RankProcesses(config, deaths.put)
    try:
        group = processes.join(check(config, rank=0))
        load(config, group)
        group.announce(StepBatch(1, 1, row_sequence_ids=[9], row_num_tokens=[1]))
        assert deaths.get(timeout=60) == RankDeath(1, 70, "BatchRefused: row_sequence_ids: unknown sequence 9")
    finally:
        processes.stop()
        torch.set_num_threads(threads)
