"""GPT-2: learned positions, pre-norm LayerNorm, tanh GELU; matrices stored as [in, out] (Radford et al., 2019)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from executor.description import DecoderDescription, LearnedPositions, Norm
from executor.errors import UnsupportedModel
from executor.families.config import ModelConfig
from executor.families.family import Family, WeightMap, linear, matrix, norm

_DEFAULTS = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
    "eos_token_id": 50256,
}


def describe(values: Mapping[str, Any]) -> DecoderDescription:
    """From a GPT-2 `config.json`."""
    config = ModelConfig(values, _DEFAULTS)
    for variant in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        if config.flag(variant):
            raise UnsupportedModel(f"GPT-2 with {variant} is not supported")
    hidden_size, num_heads = config.integer("n_embd"), config.integer("n_head")
    max_len = config.integer("n_positions")
    head_dim = hidden_size // num_heads
    return DecoderDescription(
        architecture="gpt2",
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.optional_integer("n_inner") or 4 * hidden_size,
        num_layers=config.integer("n_layer"),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        max_model_len=max_len,
        norm=Norm("layer_norm", config.number("layer_norm_epsilon")),
        positions=LearnedPositions(max_len),
        activation=config.activation("activation_function"),
        gated_mlp=False,
        attention_bias=True,
        mlp_bias=True,
        attention_scale=head_dim**-0.5 if config.flag("scale_attn_weights") else 1.0,
        tied_embeddings=config.flag("tie_word_embeddings"),
        embedding_size=hidden_size,
        eos_token_ids=config.eos_token_ids(),
        dtype=config.dtype(),
    )


def weight_map(model: DecoderDescription) -> WeightMap:
    """Names as `transformers` stores them, without the leading `transformer.`."""
    assert isinstance(model.positions, LearnedPositions)
    weights = matrix("embedding", "wte", model.vocab_size, model.hidden_size)
    weights |= matrix("position_embedding", "wpe", model.positions.num_embeddings, model.hidden_size)
    for layer in range(model.num_layers):
        weights |= _layer(model, layer)
    weights |= norm("final_norm", "ln_f", model.norm, model.hidden_size)
    if not model.tied_embeddings:
        weights |= matrix("head", "lm_head", model.vocab_size, model.hidden_size)
    return weights


def _layer(model: DecoderDescription, layer: int) -> WeightMap:
    hidden, inner = model.hidden_size, model.intermediate_size
    ours, stored = f"layers.{layer}", f"h.{layer}"
    return (
        norm(f"{ours}.attention_norm", f"{stored}.ln_1", model.norm, hidden)
        # c_attn already holds queries, keys and values one after another.
        | linear(f"{ours}.qkv", {f"{stored}.attn.c_attn": 3 * hidden}, hidden, bias=True, transposed=True)
        | linear(f"{ours}.attention_out", {f"{stored}.attn.c_proj": hidden}, hidden, bias=True, transposed=True)
        | norm(f"{ours}.mlp_norm", f"{stored}.ln_2", model.norm, hidden)
        | linear(f"{ours}.mlp_in", {f"{stored}.mlp.c_fc": inner}, hidden, bias=True, transposed=True)
        | linear(f"{ours}.mlp_out", {f"{stored}.mlp.c_proj": hidden}, inner, bias=True, transposed=True)
    )


GPT2 = Family(
    architectures=("GPT2LMHeadModel",),
    model_type="gpt2",
    describe=describe,
    weight_map=weight_map,
    prefix="transformer.",
    ignored=re.compile(r"h\.\d+\.attn\.(bias|masked_bias)"),
)
