"""Models that are cut into parts in other ways, and more ranks than two, answer as `transformers` does."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from kvmanager.cost_model import Preemption
from tests.integration import cases
from tests.integration.models import VOCAB_SIZE, Model, make_tiny
from tests.integration.ranks import on_ranks, run_every_method
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
