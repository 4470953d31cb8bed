"""Rotary position embedding (Su et al., arXiv 2104.09864) with its scalings."""

from __future__ import annotations

import math

import torch

from executor.description import (
    DynamicNtkScaling,
    FrequencyFactors,
    LinearScaling,
    Llama3Scaling,
    RotaryPositions,
    RotaryScaling,
)

Angles = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines, [tokens, 1, dim / 2] in float32."""


class RotaryEmbedding:
    """Angles by which each pair of a head's entries is turned.

    Dynamic NTK scaling makes frequencies depend on a sequence's length, but a key in the cache keeps the frequencies it
    was written with. The length that counts for a token is `max(position + 1, prompt length)`: the prompt is seen as in
    one forward pass, however it is cut into chunks; each later token sees the length it makes. That is what
    `transformers` computes for a prompt and for each step of `generate`, and it makes a token's key a function of its
    position and the prompt's length alone, so preemption and batch composition can't change it. (Prompts of different
    lengths that share a prefix through a cache agree on its keys only while both are within the original length.)
    """

    def __init__(self, positions: RotaryPositions) -> None:
        self._positions = positions
        self._frequencies = inverse_frequencies(positions)

    def angles(self, positions: torch.Tensor, prompt_lengths: torch.Tensor) -> Angles:
        """By which each token's pairs are turned.

        Args:
            positions: [tokens], from 0.
            prompt_lengths: [tokens], of each token's sequence.
        """
        if self._frequencies.device != positions.device:
            self._frequencies = self._frequencies.to(positions.device)
        scaling = self._positions.scaling
        if isinstance(scaling, DynamicNtkScaling):
            lengths = torch.maximum(positions + 1, prompt_lengths)
            frequencies = _dynamic_frequencies(self._positions, scaling, lengths)
        else:
            frequencies = self._frequencies
        angles = positions.to(torch.float32)[:, None] * frequencies
        return angles.cos()[:, None], angles.sin()[:, None]


def rotate(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Turns entry i with entry i + dim / 2; entries from dim on stay as they are.

    Args:
        heads: [tokens, heads, head_dim].
        cosines, sines: [tokens, 1, dim / 2].
    """
    half = cosines.shape[-1]
    first, second, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    turned = (first * cosines - second * sines, second * cosines + first * sines)
    return torch.cat([*(part.to(heads.dtype) for part in turned), rest], dim=-1)


def inverse_frequencies(positions: RotaryPositions) -> torch.Tensor:
    """Radians a position, [dim / 2] in float32 on the CPU; for dynamic scaling those of short sequences."""
    frequencies = 1.0 / positions.theta ** _exponents(positions.dim, torch.device("cpu"))
    return _scaled(frequencies, positions.scaling)


def _exponents(dim: int, device: torch.device) -> torch.Tensor:
    return torch.arange(0, dim, 2, dtype=torch.int64, device=device).to(torch.float32) / dim


def _scaled(frequencies: torch.Tensor, scaling: RotaryScaling | None) -> torch.Tensor:
    if isinstance(scaling, LinearScaling):
        return frequencies / scaling.factor
    if isinstance(scaling, Llama3Scaling):
        return _llama3_frequencies(frequencies, scaling)
    if isinstance(scaling, FrequencyFactors):
        return frequencies / torch.tensor(scaling.factors, dtype=torch.float32, device=frequencies.device)
    return frequencies


def _llama3_frequencies(frequencies: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    turns = scaling.original_max_len * frequencies / (2 * math.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0, 1)
    return (1 - blend) * frequencies / scaling.factor + blend * frequencies


def _dynamic_frequencies(positions: RotaryPositions, scaling: DynamicNtkScaling, lengths: torch.Tensor) -> torch.Tensor:
    """Frequencies for each token, [tokens, dim / 2]."""
    dim = positions.dim
    stretch = lengths.clamp(min=scaling.original_max_len).to(torch.float64) / scaling.original_max_len
    theta = positions.theta * (scaling.factor * stretch - (scaling.factor - 1)) ** (dim / (dim - 2))
    return 1.0 / theta.to(torch.float32)[:, None] ** _exponents(dim, lengths.device)
