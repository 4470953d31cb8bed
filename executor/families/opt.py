"""OPT: learned positions, ReLU, LayerNorm before each block or (350M) after it (Zhang et al., arXiv 2205.01068)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from executor.description import DecoderDescription, LearnedPositions, Norm
from executor.families.config import ModelConfig
from executor.families.family import Family, StoredWeight, WeightMap, linear, matrix, norm

_DEFAULTS = {
    "vocab_size": 50272,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "ffn_dim": 3072,
    "max_position_embeddings": 2048,
    "do_layer_norm_before": True,
    "_remove_final_layer_norm": False,
    "num_attention_heads": 12,
    "activation_function": "relu",
    "enable_bias": True,
    "layer_norm_elementwise_affine": True,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}

# Position p has row p + 2: the first two rows are left from the padding of the code OPT was trained with.
_POSITION_OFFSET = 2
_EPSILON = 1e-5


def describe(values: Mapping[str, Any]) -> DecoderDescription:
    """From an OPT `config.json`."""
    config = ModelConfig(values, _DEFAULTS)
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    max_len = config.integer("max_position_embeddings")
    pre_norm = config.flag("do_layer_norm_before")
    return DecoderDescription(
        architecture="opt",
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.integer("ffn_dim"),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=hidden_size // num_heads,
        max_model_len=max_len,
        norm=Norm("layer_norm", _EPSILON, affine=config.flag("layer_norm_elementwise_affine")),
        norm_place="pre" if pre_norm else "post",
        final_norm=pre_norm and not config.flag("_remove_final_layer_norm"),
        positions=LearnedPositions(max_len + _POSITION_OFFSET, _POSITION_OFFSET),
        activation=config.activation("activation_function"),
        gated_mlp=False,
        attention_bias=config.flag("enable_bias"),
        mlp_bias=config.flag("enable_bias"),
        attention_scale=(hidden_size // num_heads) ** -0.5,
        tied_embeddings=config.flag("tie_word_embeddings"),
        embedding_size=config.optional_integer("word_embed_proj_dim") or hidden_size,
        eos_token_ids=config.eos_token_ids(),
        dtype=config.dtype(),
    )


def weight_map(model: DecoderDescription) -> WeightMap:
    """Names as `transformers` stores them, without the leading `model.`."""
    assert isinstance(model.positions, LearnedPositions)
    hidden = model.hidden_size
    weights = matrix("embedding", "decoder.embed_tokens", model.vocab_size, model.embedding_size)
    weights |= matrix("position_embedding", "decoder.embed_positions", model.positions.num_embeddings, hidden)
    if model.projects_embeddings:
        weights |= matrix("project_in", "decoder.project_in", hidden, model.embedding_size)
        weights |= matrix("project_out", "decoder.project_out", model.embedding_size, hidden)
    for layer in range(model.num_layers):
        weights |= _layer(model, f"layers.{layer}")
    if model.final_norm:
        weights |= norm("final_norm", "decoder.final_layer_norm", model.norm, hidden)
    if not model.tied_embeddings:
        weights["head.weight"] = (StoredWeight("lm_head.weight", (model.vocab_size, model.embedding_size)),)
    return weights


def _layer(model: DecoderDescription, layer: str) -> WeightMap:
    hidden, inner = model.hidden_size, model.intermediate_size
    stored, attention = f"decoder.{layer}", f"decoder.{layer}.self_attn"
    qkv = {f"{attention}.{name}_proj": hidden for name in "qkv"}
    return (
        norm(f"{layer}.attention_norm", f"{stored}.self_attn_layer_norm", model.norm, hidden)
        | linear(f"{layer}.qkv", qkv, hidden, bias=model.attention_bias)
        | linear(f"{layer}.attention_out", {f"{attention}.out_proj": hidden}, hidden, bias=model.attention_bias)
        | norm(f"{layer}.mlp_norm", f"{stored}.final_layer_norm", model.norm, hidden)
        | linear(f"{layer}.mlp_in", {f"{stored}.fc1": inner}, hidden, bias=model.mlp_bias)
        | linear(f"{layer}.mlp_out", {f"{stored}.fc2": hidden}, inner, bias=model.mlp_bias)
    )


OPT = Family(
    architectures=("OPTForCausalLM",),
    model_type="opt",
    describe=describe,
    weight_map=weight_map,
    prefix="model.",
    ignored=re.compile(r"decoder\.version"),
)
