"""LLaMA: pre-norm RMSNorm, rotary positions, gated SiLU MLP, grouped heads (Touvron et al., arXiv 2302.13971)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from executor.description import DecoderDescription, Norm
from executor.families.config import ModelConfig
from executor.families.family import Family, WeightMap, linear, matrix, norm
from executor.families.rotary_config import rotary_positions, scaled_max_len

_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "eos_token_id": 2,
}


def describe(values: Mapping[str, Any]) -> DecoderDescription:
    """From a LLaMA `config.json`."""
    config = ModelConfig(values, _DEFAULTS)
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    head_dim = config.optional_integer("head_dim") or hidden_size // num_heads
    positions = rotary_positions(config, head_dim)
    return DecoderDescription(
        architecture="llama",
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=config.optional_integer("num_key_value_heads") or num_heads,
        head_dim=head_dim,
        max_model_len=scaled_max_len(config.integer("max_position_embeddings"), positions.scaling),
        norm=Norm("rms_norm", config.number("rms_norm_eps")),
        positions=positions,
        activation=config.activation("hidden_act"),
        gated_mlp=True,
        attention_bias=config.flag("attention_bias"),
        mlp_bias=config.flag("mlp_bias"),
        attention_scale=head_dim**-0.5,
        tied_embeddings=config.flag("tie_word_embeddings"),
        embedding_size=hidden_size,
        eos_token_ids=config.eos_token_ids(),
        dtype=config.dtype(),
    )


def weight_map(model: DecoderDescription) -> WeightMap:
    """Names as `transformers` stores them, without the leading `model.`."""
    weights = matrix("embedding", "embed_tokens", model.vocab_size, model.hidden_size)
    for layer in range(model.num_layers):
        weights |= _layer(model, f"layers.{layer}")
    weights |= norm("final_norm", "norm", model.norm, model.hidden_size)
    if not model.tied_embeddings:
        weights |= matrix("head", "lm_head", model.vocab_size, model.hidden_size)
    return weights


def _layer(model: DecoderDescription, layer: str) -> WeightMap:
    hidden, inner = model.hidden_size, model.intermediate_size
    queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
    qkv = {f"{attention}.q_proj": queries, f"{attention}.k_proj": keys, f"{attention}.v_proj": keys}
    gate_up = {f"{mlp}.gate_proj": inner, f"{mlp}.up_proj": inner}
    return (
        norm(f"{layer}.attention_norm", f"{layer}.input_layernorm", model.norm, hidden)
        | linear(f"{layer}.qkv", qkv, hidden, bias=model.attention_bias)
        | linear(f"{layer}.attention_out", {f"{attention}.o_proj": hidden}, queries, bias=model.attention_bias)
        | norm(f"{layer}.mlp_norm", f"{layer}.post_attention_layernorm", model.norm, hidden)
        | linear(f"{layer}.mlp_in", gate_up, hidden, bias=model.mlp_bias)
        | linear(f"{layer}.mlp_out", {f"{mlp}.down_proj": hidden}, inner, bias=model.mlp_bias)
    )


LLAMA = Family(
    architectures=("LlamaForCausalLM",),
    model_type="llama",
    describe=describe,
    weight_map=weight_map,
    prefix="model.",
    ignored=re.compile(r".*rotary_emb\.inv_freq"),
)
