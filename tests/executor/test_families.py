"""Logits of each family, at every position, against transformers on random weights."""

from __future__ import annotations

import pytest
import torch
import transformers

from tests.executor.conftest import BOTH_DECODERS

pytestmark = BOTH_DECODERS

_LLAMA = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
_OPT = {
    "vocab_size": 96,
    "hidden_size": 32,
    "ffn_dim": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
_GPT2 = {"vocab_size": 96, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}


def _llama(**changes):
    return transformers.LlamaConfig(**(_LLAMA | changes))


def _opt(**changes):
    return transformers.OPTConfig(**(_OPT | changes))


def _gpt2(**changes):
    return transformers.GPT2Config(**(_GPT2 | changes))


def _rope(kind, **settings):
    return _llama(rope_parameters={"rope_type": kind, "rope_theta": 5000.0, **settings})


_LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 24}

_CONFIGS = {
    "llama, grouped heads": _llama(),
    "llama, all heads": _llama(num_key_value_heads=4),
    "llama, one kv head": _llama(num_key_value_heads=1),
    "llama, tied": _llama(tie_word_embeddings=True),
    "llama, biases": _llama(attention_bias=True, mlp_bias=True),
    "llama, own head_dim": _llama(head_dim=12),
    "llama, gelu": _llama(hidden_act="gelu"),
    "llama, theta": _llama(rope_parameters={"rope_type": "default", "rope_theta": 300.0}),
    "llama, linear": _rope("linear", factor=3.0),
    "llama, dynamic": _rope("dynamic", factor=2.0),
    "llama, llama3": _rope("llama3", **_LLAMA3),
    "opt, pre-norm": _opt(),
    "opt, post-norm": _opt(do_layer_norm_before=False),
    "opt, projected embeddings": _opt(word_embed_proj_dim=20, do_layer_norm_before=False),
    "opt, projected, untied": _opt(word_embed_proj_dim=20, tie_word_embeddings=False),
    "opt, no biases": _opt(enable_bias=False),
    "opt, plain norms": _opt(layer_norm_elementwise_affine=False),
    "opt, no final norm": _opt(_remove_final_layer_norm=True),
    "gpt2": _gpt2(),
    "gpt2, inner size": _gpt2(n_inner=40),
    "gpt2, unscaled": _gpt2(scale_attn_weights=False),
    "gpt2, untied": _gpt2(tie_word_embeddings=False),
}


@pytest.mark.parametrize("config", _CONFIGS.values(), ids=_CONFIGS.keys())
def test_logits_equal_those_of_transformers(config, save_model, load, all_logits, prompt):
    folder, model = save_model(config)
    tokens = prompt(50, seed=1)
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(all_logits(load(folder), tokens), expected, atol=2e-4, rtol=1e-4)


def test_dynamic_scaling_of_a_prompt_beyond_the_original_length(save_model, load, all_logits, prompt):
    folder, model = save_model(_rope("dynamic", factor=2.0))
    executor = load(folder)
    assert executor.info.max_model_len == 128
    tokens = prompt(100, seed=2)
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(all_logits(executor, tokens), expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("prompt_length", [40, 70])
def test_dynamic_scaling_grows_while_generating(save_model, load, drive, prompt, prompt_length):
    """Across the original length of 64 and beyond it, also when the prompt is computed in chunks."""
    folder, model = save_model(_rope("dynamic", factor=4.0))
    tokens = prompt(prompt_length, seed=3)
    expected = model.generate(torch.tensor([tokens]), max_new_tokens=50, do_sample=False, eos_token_id=None)
    for chunk in (1000, 9):
        assert drive(load(folder)).generate([tokens], 50, chunk=chunk)[0] == expected[0, prompt_length:].tolist()


def test_dynamic_scaling_survives_preemption_and_neighbours(save_model, load, drive, prompt):
    folder, _ = save_model(_rope("dynamic", factor=4.0))
    tokens, other = prompt(50, seed=4), prompt(100, seed=5)
    undisturbed = drive(load(folder)).generate([tokens], 60)[0]

    driver = drive(load(folder))
    driver.generate([tokens, other], 30)
    so_far = driver.tokens[0]
    resumed = driver.new(7, so_far, prompt_length=50)
    driver.run({7: len(so_far)}, [resumed], forget=[0, 1])
    while len(driver.tokens[7]) < 110:
        driver.run({7: 1})
    assert driver.tokens[7][50:] == undisturbed
