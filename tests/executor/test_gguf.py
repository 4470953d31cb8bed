"""GGUF files of the LLaMA architecture: the same logits as the checkpoint they were made from."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from executor.errors import CheckpointError, UnsupportedModel
from executor.native.library import runnable_levels
from executor.weights import open_checkpoint

_GLOBAL = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _gguf_name(name):
    base, _, kind = name.rpartition(".")
    if base in _GLOBAL:
        return f"{_GLOBAL[base]}.{kind}"
    _, _, layer, part = base.split(".", 3)
    return f"blk.{layer}.{_LAYER[part]}.{kind}"


def _pairs_together(values, heads):
    """llama.cpp's order of the rows of queries and keys."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def _write(path, model, *, quantise=None, architecture="llama", extra=None):
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_token_list([f"token {i} ·" for i in range(config.vocab_size)])
    writer.add_token_types([1] * config.vocab_size)
    writer.add_eos_token_id(2)
    if extra:
        extra(writer)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.numpy()
        for part, count in heads.items():
            if f".{part}." in name:
                values = _pairs_together(values, count)
        if quantise and values.ndim == 2:
            writer.add_tensor(_gguf_name(name), gguf.quantize(values, quantise), raw_dtype=quantise)
        else:
            writer.add_tensor(_gguf_name(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def llama_of(save_model, llama_config):
    def make(**changes):
        return save_model(llama_config(**changes))[1]

    return make


def _logits(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0]


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True}, {"attention_bias": True, "mlp_bias": True}])
def test_logits_equal_those_of_the_original(llama_of, load, all_logits, prompt, tmp_path, changes):
    model = llama_of(**changes)
    executor = load(_write(tmp_path / "tiny.gguf", model))
    assert (executor.info.model_name, executor.info.eos_token_ids) == ("tiny", (2,))
    tokens = prompt(40, seed=1)
    torch.testing.assert_close(all_logits(executor, tokens), _logits(model, tokens), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "Q4_0", "F16", "BF16"])
def test_quantised_weights_are_what_their_blocks_say(llama_of, load, all_logits, prompt, tmp_path, kind):
    """Equal to the original whose matrices went through the same quantisation and back."""
    quantise = gguf.GGMLQuantizationType[kind]
    model = llama_of(hidden_size=64, num_attention_heads=2, num_key_value_heads=1, intermediate_size=96)
    executor = load(_write(tmp_path / "tiny.gguf", model, quantise=quantise))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                there_and_back = gguf.dequantize(gguf.quantize(parameter.numpy(), quantise), quantise)
                parameter.copy_(torch.tensor(there_and_back).reshape(parameter.shape))
    tokens = prompt(20, seed=2)
    torch.testing.assert_close(all_logits(executor, tokens), _logits(model, tokens), atol=3e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "Q4_0"])
def test_a_quantised_matrix_is_read_as_it_is_stored(llama_of, tmp_path, kind):
    """Codes and scales stand for the same numbers, in the same order of rows, as the matrix that is dequantised."""
    quantise = gguf.GGMLQuantizationType[kind]
    model = llama_of(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96)
    weights = open_checkpoint(_write(tmp_path / "tiny.gguf", model, quantise=quantise)).weights
    for name in weights.names():
        matrix = weights.read_quantised(name)
        assert (matrix is None) == (len(weights.shape(name)) == 1)
        if matrix is not None:
            np.testing.assert_array_equal(matrix.dequantised(), weights.read(name).numpy())


@pytest.mark.skipif(not runnable_levels(), reason="no kernels were built")
@pytest.mark.parametrize("quantize", ["int4", "int8"])
@pytest.mark.parametrize("inner", [96, 88])
def test_quantised_products_are_near_those_of_floats(llama_of, load, all_logits, prompt, tmp_path, quantize, inner):
    """Also where one matrix has no whole groups and stays as it is."""
    kind = gguf.GGMLQuantizationType.Q4_1
    model = llama_of(hidden_size=64, num_attention_heads=2, num_key_value_heads=1, intermediate_size=inner)
    path = _write(tmp_path / "tiny.gguf", model, quantise=kind if inner % 32 == 0 else None)
    tokens = prompt(30, seed=5)
    exact = all_logits(load(path, decoder="native", dtype="float32"), tokens).clone()
    quantised = all_logits(load(path, decoder="native", dtype="float32", quantize=quantize), tokens)
    error = float((quantised - exact).std() / exact.std())
    # Logits that have nothing to do with one another are 1.4 apart. A random model makes much of small differences:
    # 8 bits of activations and weights come to 0.08, weights rounded to 4 bits to 0.6.
    assert 0 < error < (0.8 if quantize == "int4" and inner % 32 else 0.15)


def test_linear_scaling(llama_of, load, all_logits, prompt, tmp_path):
    model = llama_of(rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0})

    def scaling(writer):
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(2.0)

    executor = load(_write(tmp_path / "tiny.gguf", model, extra=scaling))
    tokens = prompt(60, seed=3)
    torch.testing.assert_close(all_logits(executor, tokens), _logits(model, tokens), atol=2e-4, rtol=1e-4)


def test_llama3_scaling_stored_as_frequency_factors(llama_of, load, all_logits, prompt, tmp_path):
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    model = llama_of(rope_parameters=rope)
    frequencies = model.model.rotary_emb.inv_freq
    unscaled = 1.0 / 10000.0 ** (torch.arange(0, 8, 2) / 8)

    def factors(writer):
        writer.add_tensor("rope_freqs.weight", (unscaled / frequencies).numpy())

    executor = load(_write(tmp_path / "tiny.gguf", model, extra=factors))
    tokens = prompt(60, seed=4)
    torch.testing.assert_close(all_logits(executor, tokens), _logits(model, tokens), atol=2e-4, rtol=1e-4)


def test_other_architectures_are_refused(llama, load, tmp_path):
    with pytest.raises(UnsupportedModel, match="GGUF architecture gemma is not supported; supported: llama"):
        load(_write(tmp_path / "tiny.gguf", llama[1], architecture="gemma"))


def test_a_truncated_file_is_refused(llama, load, tmp_path):
    path = _write(tmp_path / "tiny.gguf", llama[1])
    whole = path.read_bytes()
    for size in (100, 700, 3000, len(whole) - 5000):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match="can't read"):
            load(path)


@pytest.mark.parametrize("kind", [None, "Q4_1", "F16"])
def test_a_part_is_read_as_it_is_cut_from_the_whole(llama_of, tmp_path, kind):
    quantise = kind and gguf.GGMLQuantizationType[kind]
    model = llama_of(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96)
    weights = open_checkpoint(_write(tmp_path / "tiny.gguf", model, quantise=quantise)).weights
    for name in weights.names():
        whole = weights.read(name)
        rows, columns = slice(16, 32), slice(3, 40)
        torch.testing.assert_close(weights.read(name, (rows,)), whole[rows], atol=0, rtol=0)
        if whole.dim() == 2:
            torch.testing.assert_close(weights.read(name, (rows, columns)), whole[rows, columns], atol=0, rtol=0)
