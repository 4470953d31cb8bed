"""What a model folder may look like, and what is said when something is wrong with it."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from executor.errors import CheckpointError, SettingsError, UnsupportedModel


@pytest.fixture
def folder(llama, tmp_path):
    """A copy to spoil."""
    return shutil.copytree(llama[0], tmp_path / "model")


def _edit_config(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def _edit_weights(folder, edit):
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _logits(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0]


def test_shards_are_read_like_a_single_file(llama, tmp_path, load, all_logits, prompt):
    _, model = llama
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    tokens = prompt(20, seed=1)
    torch.testing.assert_close(all_logits(load(tmp_path), tokens), _logits(model, tokens), atol=2e-4, rtol=1e-4)


def test_names_without_the_base_model_prefix(save_model, load, all_logits, prompt):
    """As in the original GPT-2 files, which also hold the causal mask as a buffer."""
    config = transformers.GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    folder, model = save_model(config)

    def as_published(weights):
        for name in list(weights):
            weights[name.removeprefix("transformer.")] = weights.pop(name)
        weights["h.0.attn.bias"] = torch.ones(1, 1, 64, 64)

    _edit_weights(folder, as_published)
    tokens = prompt(20, seed=1)
    torch.testing.assert_close(all_logits(load(folder), tokens), _logits(model, tokens), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "scaling",
    [
        {"type": "linear", "factor": 2.0},
        {"type": "dynamic", "factor": 2.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        None,
    ],
)
def test_rotary_settings_in_the_older_spelling(folder, load, all_logits, prompt, scaling):
    _edit_config(folder, rope_parameters=..., rope_theta=700.0, rope_scaling=scaling)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokens = prompt(60, seed=2)
    torch.testing.assert_close(all_logits(load(folder), tokens), _logits(model, tokens), atol=2e-4, rtol=1e-4)


def test_absent_fields_have_the_defaults_of_the_family(folder, load, all_logits, prompt):
    _edit_config(folder, rope_parameters=..., rms_norm_eps=..., hidden_act=..., tie_word_embeddings=..., head_dim=...)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokens = prompt(20, seed=3)
    torch.testing.assert_close(all_logits(load(folder), tokens), _logits(model, tokens), atol=2e-4, rtol=1e-4)


def test_end_of_sequence_tokens_of_both_files(folder, load):
    _edit_config(folder, eos_token_id=2)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2]}))
    assert load(folder).info.eos_token_ids == (2, 7)


def test_unknown_architecture_says_what_is_supported(folder, load):
    _edit_config(folder, architectures=["MambaForCausalLM"])
    with pytest.raises(UnsupportedModel, match=r"MambaForCausalLM.*LlamaForCausalLM, OPTForCausalLM, GPT2LMHeadModel"):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "xielu"}, "hidden_act"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "yarn"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
    ],
)
def test_unsupported_variants_are_named(folder, load, changes, message):
    _edit_config(folder, **changes)
    with pytest.raises(UnsupportedModel, match=message):
        load(folder)


def test_a_bad_field_of_the_configuration_is_named(folder, load):
    _edit_config(folder, hidden_size="wide")
    with pytest.raises(CheckpointError, match="hidden_size must be a positive integer, not 'wide'"):
        load(folder)


def test_a_missing_weight_is_named(folder, load):
    _edit_weights(folder, lambda weights: weights.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(CheckpointError, match=r"lacks layers\.1\.mlp\.up_proj\.weight"):
        load(folder)


def test_an_unexpected_weight_is_named(folder, load):
    _edit_weights(folder, lambda weights: weights.update({"model.layers.0.self_attn.q_norm.weight": torch.ones(8)}))
    with pytest.raises(CheckpointError, match=r"layers\.0\.self_attn\.q_norm\.weight"):
        load(folder)


def test_a_wrong_shape_is_named(folder, load):
    _edit_weights(folder, lambda weights: weights.update({"model.norm.weight": torch.ones(31)}))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight has shape \[31\], expected \[32\]"):
        load(folder)


def test_files_that_are_missing_or_broken(folder, tmp_path, load):
    with pytest.raises(CheckpointError, match="no model at"):
        load(tmp_path / "nothing")
    (tmp_path / "model.gguf").write_bytes(b"GGUF and no more")
    with pytest.raises(CheckpointError, match="can't read"):
        load(tmp_path / "model.gguf")
    (folder / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(CheckpointError, match="can't read"):
        load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        load(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load(folder)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_close(llama, load, all_logits, prompt, dtype):
    folder, model = llama
    executor = load(folder, dtype=dtype)
    assert executor.info.dtype == dtype
    tokens = prompt(30, seed=4)
    expected = _logits(model, tokens)
    error = (all_logits(executor, tokens) - expected).abs().max() / expected.abs().max()
    assert error < 0.05


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "int4"}, "dtype must be one of auto, float32"),
        ({"device": "tpu"}, "device must be one of"),
        ({"attention_backend": "magic"}, "attention_backend must be one of auto, reference, cpu"),
        ({"block_size": 0}, "block_size must be at least 1"),
        ({"max_model_len": 129}, "max_model_len 129 is above the model's own limit of 128"),
        ({"kv_memory": "much"}, "kv_memory 'much'"),
        ({"kv_memory": "100B"}, "less than one block"),
    ],
)
def test_impossible_settings_are_named(llama, load, settings, message):
    with pytest.raises(SettingsError, match=message):
        load(llama[0], **settings)


def test_max_model_len_is_lowered_to_what_the_blocks_hold(llama, load, caplog):
    block_bytes = 2 * 3 * 16 * 2 * 8 * 4
    info = load(llama[0], kv_memory=f"{3 * block_bytes + 5}B").info
    assert (info.bytes_per_block, info.num_blocks, info.max_model_len) == (block_bytes, 3, 48)
    assert "lowered from 128 to 48" in caplog.text
    assert load(llama[0], max_model_len=100).info.max_model_len == 100


def test_each_executor_is_another_incarnation(llama, load):
    assert load(llama[0]).info.incarnation != load(llama[0]).info.incarnation
