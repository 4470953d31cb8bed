"""Decode steps of a tiny model through Triton's kernels, with the tables that CUDA graphs read."""

from __future__ import annotations

from array import array

import pytest
import torch
import transformers

from executor.attention import BACKENDS
from executor.families.llama import describe
from executor.memory.arena import BlockArena
from executor.model_runner import Row
from executor.sequences import SequenceState
from executor.step import SamplingParams
from executor.torch_decoder.decoder import Decoder
from executor.torch_decoder.torch_runner import TorchRunner
from executor.weights import shard

_CPU = torch.device("cpu")


class Again:
    """In the place of a graph, the function is called again, over the same tensors."""

    def __init__(self):
        self.num_replays = 0

    def capture(self, function):
        def replay():
            self.num_replays += 1
            function()

        function()
        return replay


@pytest.fixture
def runners(seed):
    """One with the reference, one with Triton and graphs."""
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=64,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=128,
    )
    model = shard(describe(config.to_dict()), 0, 1)
    decoder = Decoder(model)
    decoder.load({name: 0.3 * torch.randn(each.shape) for name, each in decoder.state_dict().items()})
    graphs = Again()

    def runner(name, capture):
        attention = BACKENDS[name]()
        layout = attention.block_layout(model.model, 16, torch.float32)
        arena = BlockArena(layout, num_blocks=12, block_size=16, device=_CPU)
        arena.data.fill_(torch.nan)
        return TorchRunner(decoder, arena, attention, _CPU, capture)

    with_graphs = runner("triton", graphs)
    with_graphs.prepare_decodes(3, 64, lambda *_: None)
    return runner("reference", None), with_graphs, graphs


@torch.inference_mode()
def test_steps_of_several_sizes(runners, rng):
    """Prompts are computed as they come; then one, two and three sequences go on."""
    plain, with_graphs, graphs = runners
    tables = [[3, 7], [0, 4], [5, 1, 2, 9]]
    lengths = [17, 15, 40]
    sequences = [
        SequenceState(
            i, array("q", rng.integers(0, 50, length)), length, 0, array("q", table), 0, SamplingParams(temperature=0)
        )
        for i, (length, table) in enumerate(zip(lengths, tables, strict=True))
    ]

    def run(rows):
        expected, found = plain.run(rows), with_graphs.run(rows)
        assert torch.allclose(found, expected, atol=1e-4), (found - expected).abs().max()
        for row, token in zip(rows, expected.argmax(dim=-1).tolist(), strict=True):
            row.sequence.num_computed += row.num_tokens
            row.sequence.token_ids.append(token)

    run([Row(each, length) for each, length in zip(sequences, lengths, strict=True)])
    assert graphs.num_replays == 0
    for number, some in enumerate(([1], [0, 2], [2, 1, 0], [1])):
        run([Row(sequences[i], 1) for i in some])
        assert graphs.num_replays == number + 1
