"""What each of several ranks reads of a model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers

from executor.errors import SettingsError
from executor.families import family_of
from executor.loader import check_loadable
from executor.settings import ExecutorSettings
from executor.weights import Parameters, open_checkpoint, shard

CPU = torch.device("cpu")


@pytest.fixture
def config(llama_config, request):
    """Of each family; as many tokens as can't be shared out evenly."""
    return {
        "llama": llama_config(vocab_size=97, attention_bias=True, mlp_bias=True, tie_word_embeddings=False),
        "opt": transformers.OPTConfig(
            vocab_size=97,
            hidden_size=32,
            word_embed_proj_dim=16,
            ffn_dim=48,
            num_hidden_layers=1,
            num_attention_heads=4,
            max_position_embeddings=64,
        ),
        "gpt2": transformers.GPT2Config(vocab_size=97, n_embd=32, n_layer=1, n_head=4, n_positions=64, n_inner=48),
    }[request.param]


@pytest.fixture
def describe(save_model):
    """A saved model's description, and what reads a rank's part of it."""

    def describe(config):
        checkpoint = open_checkpoint(save_model(config)[0])
        family = family_of(checkpoint.config)
        model = family.describe(checkpoint.config)

        def read(rank, size):
            part = shard(model, rank, size)
            parameters = Parameters(checkpoint.weights, family, family.weight_map(model), part)
            return parameters.read_all(dtype=torch.float32, device=CPU)

        return model, read

    return describe


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("config", ["llama", "opt", "gpt2"], indirect=True)
def test_each_rank_reads_its_heads_its_units_and_its_tokens(config, describe, size):
    model, read = describe(config)
    whole = read(0, 1)
    queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    for rank in range(size):
        part = read(rank, size)
        assert part.keys() == whole.keys()
        # Of four ranks and two key/value heads, two have the same one.
        key_share = (rank * min(size, model.num_kv_heads) // size, min(size, model.num_kv_heads))

        def cut(values, rank=rank, size=size):
            return values.chunk(size)[rank]

        for name, values in whole.items():
            module, kind = name.split(".")[-2:]
            if module in ("embedding", "head"):
                assert len(part[name]) in (97 // size, 97 // size + 1)
                expected = values[97 * rank // size : 97 * (rank + 1) // size]
            elif module == "qkv":
                q, k, v = values.split((queries, keys, keys))
                expected = torch.cat([cut(q), cut(k, *key_share), cut(v, *key_share)])
            elif module == "mlp_in":
                expected = torch.cat([cut(half) for half in values.chunk(1 + model.gated_mlp)])
            elif module in ("attention_out", "mlp_out"):
                expected = cut(values.t()).t() if kind == "weight" else values * (rank == 0)
            else:
                expected = values
            torch.testing.assert_close(part[name], expected, atol=0, rtol=0, msg=lambda text, name=name: name + text)


@pytest.mark.parametrize("config", ["llama", "opt", "gpt2"], indirect=True)
def test_the_ranks_descriptions_fit_their_parts(config, describe):
    model, read = describe(config)
    for rank in range(4):
        part, parameters = shard(model, rank, 4).model, read(rank, 4)
        assert part.num_heads == 1
        assert part.num_kv_heads == 1
        assert parameters["layers.0.qkv.weight"].shape == (3 * part.head_dim, part.hidden_size)
        assert parameters["layers.0.mlp_out.weight"].shape == (part.hidden_size, part.intermediate_size)
        assert len(parameters["embedding.weight"]) == part.vocab_size


def test_what_cannot_be_cut_is_refused(describe, llama_config):
    model, _ = describe(llama_config())  # 4 heads, 2 key/value heads, 48 units
    for changes, size, message in (
        ({}, 3, "tensor_parallel_size 3: the model's 4 attention heads can't be divided by it"),
        (
            {"num_heads": 6, "num_kv_heads": 3},
            2,
            "tensor_parallel_size 2: the model's 3 key/value heads can't be divided by it, nor it by their number",
        ),
        (
            {"intermediate_size": 49},
            2,
            "tensor_parallel_size 2: the model's 49 units of the MLP can't be divided by it",
        ),
    ):
        with pytest.raises(SettingsError, match=message):
            shard(replace(model, **changes), 0, size)


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def _settings(llama, **changes):
    return ExecutorSettings(model=llama[0], kv_memory="1MiB", **changes)


def test_each_rank_has_a_gpu_of_its_own(two_gpus, llama):
    settings = _settings(llama, tensor_parallel_size=2)
    assert [check_loadable(settings, rank) for rank in (0, 1)] == [torch.device("cuda", 0), torch.device("cuda", 1)]
    with pytest.raises(SettingsError, match=r"^tensor_parallel_size 4 needs 4 GPUs, there are 2$"):
        check_loadable(_settings(llama, tensor_parallel_size=4, device="cuda"), rank=0)
    assert check_loadable(_settings(llama, tensor_parallel_size=4, device="cpu"), rank=3) == CPU


def test_the_native_decoder_computes_in_one_process(llama):
    message = "decoder native: it computes in one process, and tensor_parallel_size is 2"
    with pytest.raises(SettingsError, match=message):
        check_loadable(_settings(llama, tensor_parallel_size=2, decoder="native", device="cpu"), rank=0)
