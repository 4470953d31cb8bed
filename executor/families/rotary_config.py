"""Rotary settings of a configuration, in both spellings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from executor.description import (
    DynamicNtkScaling,
    FrequencyFactors,
    LinearScaling,
    Llama3Scaling,
    RotaryPositions,
    RotaryScaling,
)
from executor.errors import CheckpointError, UnsupportedModel
from executor.families.config import ModelConfig, as_number


def rotary_positions(config: ModelConfig, head_dim: int) -> RotaryPositions:
    """Reads `rope_parameters` (transformers 5) or `rope_theta` with `rope_scaling` (before).

    Raises:
        UnsupportedModel: for a scaling other than linear, dynamic, llama3 and per-frequency factors.
        CheckpointError: if a scaling's field is missing or malformed.
    """
    settings: Mapping[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = settings.get("rope_theta") or config.get("rope_theta")
    scaling = _scaling(settings, config)
    if isinstance(scaling, FrequencyFactors) and len(scaling.factors) != head_dim // 2:
        raise CheckpointError(f"{len(scaling.factors)} rotary frequency factors for a head_dim of {head_dim}")
    return RotaryPositions(theta=as_number(theta, "rope_theta"), dim=head_dim, scaling=scaling)


def scaled_max_len(max_position_embeddings: int, scaling: RotaryScaling | None) -> int:
    """Longest sequence: linear and dynamic scaling stretch `max_position_embeddings`, the others have it stretched."""
    if isinstance(scaling, (LinearScaling, DynamicNtkScaling)):
        return int(max_position_embeddings * scaling.factor)
    return max_position_embeddings


def _scaling(settings: Mapping[str, Any], config: ModelConfig) -> RotaryScaling | None:
    kind = settings.get("rope_type") or settings.get("type") or "default"
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(_number(settings, "factor"))
    if kind == "dynamic":
        return DynamicNtkScaling(_number(settings, "factor"), config.integer("max_position_embeddings"))
    if kind == "llama3":
        original = (
            config.get("original_max_position_embeddings")
            or settings.get("original_max_position_embeddings")
            or config.integer("max_position_embeddings")
        )
        return Llama3Scaling(
            factor=_number(settings, "factor"),
            low_freq_factor=_number(settings, "low_freq_factor"),
            high_freq_factor=_number(settings, "high_freq_factor"),
            original_max_len=int(original),
        )
    if kind == "frequency_factors":
        return FrequencyFactors(tuple(settings["factors"]))
    raise UnsupportedModel(f"rotary scaling {kind!r} is not supported; supported: linear, dynamic, llama3")


def _number(settings: Mapping[str, Any], key: str) -> float:
    return as_number(settings.get(key), f"rope_parameters.{key}")
