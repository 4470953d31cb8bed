"""A decoder-only transformer described by data.

Everything in which model families differ is a field here; the decoder reads the fields and never a family's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["relu", "silu", "gelu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class Norm:
    """A normalisation.

    Attributes:
        kind: LayerNorm (Ba et al., arXiv 1607.06450) or RMSNorm (Zhang and Sennrich, arXiv 1910.07467).
        affine: whether it has learned weights (and, for LayerNorm, a bias).
    """

    kind: Literal["layer_norm", "rms_norm"]
    epsilon: float
    affine: bool = True

    @property
    def has_bias(self) -> bool:
        return self.affine and self.kind == "layer_norm"


@dataclass(frozen=True, slots=True)
class LearnedPositions:
    """A trained embedding for each position; row `position + offset` of a matrix with `num_embeddings` rows."""

    num_embeddings: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """All frequencies divided by `factor` (position interpolation, Chen et al., arXiv 2306.15595)."""

    factor: float


@dataclass(frozen=True, slots=True)
class DynamicNtkScaling:
    """The base grows once a sequence is longer than `original_max_len`:
    theta * (factor * length / original_max_len - (factor - 1)) ** (dim / (dim - 2)).
    """

    factor: float
    original_max_len: int


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Low frequencies divided by `factor`, high ones kept, a linear blend between (Llama 3.1).

    Low means fewer than `low_freq_factor` turns in `original_max_len` positions, high more than `high_freq_factor`.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_len: int


@dataclass(frozen=True, slots=True)
class FrequencyFactors:
    """Each frequency divided by its own factor, `dim / 2` of them (how GGUF files store Llama 3's scaling)."""

    factors: tuple[float, ...]


RotaryScaling = LinearScaling | DynamicNtkScaling | Llama3Scaling | FrequencyFactors


@dataclass(frozen=True, slots=True)
class RotaryPositions:
    """Rotary embedding of the first `dim` entries of each head (Su et al., arXiv 2104.09864)."""

    theta: float
    dim: int
    scaling: RotaryScaling | None = None


@dataclass(frozen=True, slots=True)
class DecoderDescription:
    """The shape of a decoder.

    Attributes:
        architecture: its name in the checkpoint, for people.
        num_kv_heads: key/value heads; each serves `num_heads / num_kv_heads` query heads.
        max_model_len: longest sequence the model is made for, in tokens.
        norm_place: before or after each of a layer's two blocks.
        final_norm: whether the last layer's output is normalised.
        gated_mlp: the MLP is `down(act(gate(x)) * up(x))` instead of `down(act(up(x)))`.
        attention_bias, mlp_bias: whether those projections have biases.
        attention_scale: multiplies each query-key product.
        tied_embeddings: the output head is the input embedding.
        embedding_size: width of the token embedding; where it is not `hidden_size`, two projections go between.
        eos_token_ids: tokens that end a sequence.
        dtype: element type the checkpoint was made for.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int
    norm: Norm
    positions: LearnedPositions | RotaryPositions
    activation: Activation
    gated_mlp: bool
    attention_bias: bool
    mlp_bias: bool
    attention_scale: float
    tied_embeddings: bool
    embedding_size: int
    norm_place: Literal["pre", "post"] = "pre"
    final_norm: bool = True
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")

    @property
    def projects_embeddings(self) -> bool:
        return self.embedding_size != self.hidden_size
