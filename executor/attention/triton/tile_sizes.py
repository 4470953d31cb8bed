"""How much one program of the attention kernel takes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from executor.attention.triton.prefix_work import TILE_ROWS

Phase = Literal["prefill", "decode"]
PHASES: tuple[Phase, ...] = ("prefill", "decode")

# The narrowest matrix that tensor cores multiply.
_LEAST = 16
# Keys that a decode takes in at once, and as many values: with two tiles under way, and two or three programs on a
# multiprocessor, the memory is kept busy.
_KEY_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class TileSizes:
    """Chosen so that no register is spilled and shared memory suffices.

    Attributes:
        heads: query heads of a group; a wider group takes several programs.
        rows: queries times heads, rounded up to a power of two.
        keys: taken in at once.
        num_warps, num_stages: as Triton's options.
        peels: keys that all queries see are taken in without masks, which takes the code twice.
        is_large: only for what `is_large_gpu` says.
    """

    heads: int
    rows: int
    keys: int
    num_warps: int
    num_stages: int
    peels: bool
    is_large: bool = False

    @property
    def queries(self) -> int:
        return self.rows // self.heads


def padded(head_dim: int) -> int:
    """Entries of a head with those that are masked: powers of two are what Triton computes with."""
    return max(_LEAST, _power_of_two(head_dim))


def tile_sizes(phase: Phase, group: int, head_dim: int, kv_dtype: torch.dtype, *, is_large: bool) -> TileSizes:
    """The sizes for a model.

    Args:
        group: query heads that share a key/value head.
        is_large: as of `is_large_gpu`.
    """
    dim = padded(head_dim)
    if kv_dtype == torch.float32:
        return _sizes_of_float32(group, dim)
    return _decode_sizes(group, dim, kv_dtype.itemsize) if phase == "decode" else _prefill_sizes(group, dim, is_large)


def shared_prefix_sizes(group: int, head_dim: int, kv_dtype: torch.dtype) -> TileSizes | None:
    """The sizes for a model where a tile holds queries of `TILE_ROWS` rows; None where registers don't suffice."""
    dim = padded(head_dim)
    if kv_dtype == torch.float32:
        return _sizes_of_float32(1, dim) if dim <= 128 else None
    heads = _even_part(group, 8 if dim <= 128 else 4)
    rows = _power_of_two(TILE_ROWS * heads)
    return TileSizes(heads, rows, 64 if dim <= 64 else 32, 8 if rows > 32 else 4, 3, peels=False)


def is_large_gpu(capability: tuple[int, int]) -> bool:
    """Whether a multiprocessor has the registers at hand and the shared memory of Hopper and of data centres' Blackwell
    (CUDA C++ Programming Guide, technical specifications by compute capability)."""
    return capability[0] in (9, 10)


def _sizes_of_float32(group: int, dim: int) -> TileSizes:
    """Float32 takes three products of tensor cores for one, and the registers for them."""
    keys, num_warps, num_stages = (_KEY_BYTES // (4 * dim), 4, 3) if dim <= 128 else (16, 8, 2)
    return TileSizes(_even_part(group, _LEAST), _LEAST, min(keys, 64), num_warps, num_stages, peels=False)


def _decode_sizes(group: int, dim: int, kv_bytes: int) -> TileSizes:
    heads = _even_part(group, 64 if dim <= 128 else 32)
    rows = max(_LEAST, _power_of_two(heads))
    keys = min(_KEY_BYTES // (dim * kv_bytes), 8192 // rows, 128 if dim <= 128 else 32)
    return TileSizes(heads, rows, keys, num_warps=8 if rows > 32 else 4, num_stages=3, peels=False)


def _prefill_sizes(group: int, dim: int, is_large: bool) -> TileSizes:
    if dim <= 64:
        rows, keys, num_stages, is_large = 128, 64, 3, False
    elif dim <= 128:
        rows, keys, num_stages = 128 if is_large else 64, 64, 3
    else:
        rows, keys, num_stages = 64, 32, 3 if is_large else 2
    return TileSizes(_even_part(group, rows), rows, keys, 8, num_stages, peels=True, is_large=is_large)


def _even_part(group: int, most: int) -> int:
    """Heads of each part of a group, of as few parts as possible."""
    parts = -(-group // most)
    return -(-group // parts)


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
