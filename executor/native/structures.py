"""The kernels' structures, field by field as in src/attention.h and src/decoder.h."""

from __future__ import annotations

from ctypes import Structure, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum

from executor.native.linear import LinearStruct


class KvKind(IntEnum):
    """How keys and values are stored."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2


class NormKind(IntEnum):
    RMS = 0
    LAYER = 1


class NormWeights(Structure):
    _fields_ = [("weight", c_void_p), ("bias", c_void_p)]


class LayerWeights(Structure):
    _fields_ = [
        ("attention_norm", NormWeights),
        ("mlp_norm", NormWeights),
        ("qkv", LinearStruct),
        ("attention_out", LinearStruct),
        ("mlp_in", LinearStruct),
        ("mlp_out", LinearStruct),
    ]


class KvCache(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("block_stride", c_int64),
        ("kind", c_int32),
        ("block_size", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
    ]


class AttentionParams(Structure):
    _fields_ = [
        ("scale", c_float),
        ("soft_cap", c_float),
        ("window", c_int64),
        ("alibi_slopes", c_void_p),
        ("heads", c_int32),
    ]


class DecoderModel(Structure):
    _fields_ = [
        ("vocab_size", c_int64),
        ("hidden_size", c_int64),
        ("embedding_size", c_int64),
        ("intermediate_size", c_int64),
        ("num_layers", c_int64),
        ("rotary_dim", c_int64),
        ("position_offset", c_int64),
        ("norm", c_int32),
        ("norm_epsilon", c_float),
        ("norm_first", c_int32),
        ("has_final_norm", c_int32),
        ("activation", c_int32),
        ("attention", AttentionParams),
        ("embedding", LinearStruct),
        ("head", LinearStruct),
        ("project_in", LinearStruct),
        ("project_out", LinearStruct),
        ("position_embedding", c_void_p),
        ("final_norm", NormWeights),
        ("layers", c_void_p),
    ]


class DecoderStep(Structure):
    _fields_ = [
        ("num_rows", c_int64),
        ("counts", c_void_p),
        ("contexts", c_void_p),
        ("tables", c_void_p),
        ("tokens", c_void_p),
        ("sampled", c_void_p),
        ("num_sampled", c_int64),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("angles_by_token", c_int32),
        ("logits", c_void_p),
    ]
