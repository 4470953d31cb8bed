"""Attention and rotary positions as their formulas say, in float64, for one sequence in one piece."""

from __future__ import annotations

import torch

from executor.attention import AttentionParams
from executor.rotary import Angles


def attention(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, params: AttentionParams) -> torch.Tensor:
    """What each of the last tokens of a sequence attends to.

    Args:
        queries: [count, heads, head_dim], of the last tokens.
        keys, values: [length, kv_heads, head_dim], of all tokens.

    Returns:
        [count, heads, head_dim] in float64.
    """
    count, heads, _ = queries.shape
    length, kv_heads, _ = keys.shape
    asked = queries.double().transpose(0, 1)
    seen, held = (part.double().repeat_interleave(heads // kv_heads, 1).transpose(0, 1) for part in (keys, values))
    position = torch.arange(length, device=keys.device)
    distance = position[None, :] - position[length - count :, None]
    scores = asked @ seen.transpose(1, 2) * params.scale
    if params.soft_cap:
        scores = params.soft_cap * torch.tanh(scores / params.soft_cap)
    if params.alibi_slopes:
        scores = scores + scores.new_tensor(params.alibi_slopes)[:, None, None] * distance
    hidden = distance > 0
    if params.window:
        hidden |= distance <= -params.window
    return (torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1) @ held).transpose(0, 1)


def rotated(heads: torch.Tensor, angles: Angles) -> torch.Tensor:
    """Entries i and i + dim / 2 turned as one complex number, in float64.

    Args:
        heads: [tokens, heads, head_dim]; entries from dim on stay as they are.
    """
    cosines, sines = angles
    half = cosines.shape[-1]
    turn = torch.complex(cosines.double(), sines.double())
    turned = torch.complex(heads[..., :half].double(), heads[..., half : 2 * half].double()) * turn
    return torch.cat([turned.real, turned.imag, heads[..., 2 * half :].double()], dim=-1)


def relative_error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest distance of a vector (last dimension) from what it should be, over that one's length; NaN counts as
    infinite."""
    distance = (result.double() - expected).norm(dim=-1)
    errors = distance / expected.norm(dim=-1).clamp(min=1e-30)
    return float(torch.nan_to_num(errors, nan=torch.inf).max())
