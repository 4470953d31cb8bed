"""How much one program of the attention kernel takes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from executor.attention.triton.prefix_work import TILE_ROWS

Phase = Literal["prefill", "decode"]
PHASES: tuple[Phase, ...] = ("prefill", "decode")

HEAD_DIMS = range(8, 257, 8)
"""Sizes of heads that there are tiles for."""

# The narrowest matrix that tensor cores multiply.
_LEAST = 16
MOST_REGISTERS = 255
"""That a thread can have. Left alone, the assembler at times aims at 128 or 168, and spills where some more suffice."""

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


def dot_precision(head_dim: int, kv_dtype: torch.dtype) -> str:
    """How float32 is multiplied, as Triton's option: by tensor cores in three products of tf32, unless heads are so
    wide that the registers don't suffice. What has 8 bits is exact in tf32."""
    if kv_dtype != torch.float32:
        return "tf32"
    return "tf32x3" if head_dim <= 128 else "ieee"


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
    if phase == "decode":
        return _decode_sizes(group, dim, kv_dtype.itemsize)
    return _prefill_sizes(group, head_dim, kv_dtype.itemsize, is_large)


def shared_prefix_sizes(group: int, head_dim: int, kv_dtype: torch.dtype) -> TileSizes | None:
    """The sizes for a model where a tile holds queries of `TILE_ROWS` rows; None where registers don't suffice."""
    dim = padded(head_dim)
    if kv_dtype == torch.float32:
        return TileSizes(1, TILE_ROWS, 32, 8, 3, peels=False) if dim <= 128 else None
    heads = _even_part(group, 8 if dim <= 128 else 4)
    rows = _power_of_two(TILE_ROWS * heads)
    return TileSizes(heads, rows, 64 if dim <= 64 else 32, 8 if rows > 32 else 4, 3, peels=False)


def is_large_gpu(capability: tuple[int, int]) -> bool:
    """Whether it multiplies from shared memory, and has as much of it as Hopper and data centres' Blackwell (CUDA C++
    Programming Guide, technical specifications by compute capability)."""
    return capability[0] in (9, 10)


def _sizes_of_float32(group: int, dim: int) -> TileSizes:
    keys, num_warps = min(64, _KEY_BYTES // (4 * dim)), 4 if dim <= 128 else 8
    return TileSizes(_even_part(group, _LEAST), _LEAST, keys, num_warps, num_stages=3, peels=False)


def _decode_sizes(group: int, dim: int, kv_bytes: int) -> TileSizes:
    heads = _even_part(group, 64 if dim <= 128 else 32)
    rows = max(_LEAST, _power_of_two(heads))
    # Converting from 8 bits takes registers.
    most = 32 if dim > 128 else 64 if kv_bytes == 1 and (dim > 64 or rows > 16) else 128
    keys = min(_KEY_BYTES // (dim * kv_bytes), 4096 // rows, most)
    return TileSizes(heads, rows, keys, num_warps=8 if rows > 32 else 4, num_stages=3, peels=False)


def _prefill_sizes(group: int, head_dim: int, kv_bytes: int, is_large: bool) -> TileSizes:
    dim = padded(head_dim)
    # Converting from 8 bits takes registers, and so do the masks of heads that are padded.
    is_large = is_large and 64 < dim <= 128 and kv_bytes > 1
    rows, keys, num_stages = 128, 64, 3
    if dim > 128:
        rows, keys, num_stages = 64, 32 if head_dim == dim else 16, 2
    elif kv_bytes == 1 or (head_dim < dim <= 64) or (dim > 64 and not is_large):
        rows = 64
    return TileSizes(_even_part(group, rows), rows, keys, 8, num_stages, peels=dim <= 128, is_large=is_large)


def _even_part(group: int, most: int) -> int:
    """Heads of each part of a group, of as few parts as possible."""
    parts = -(-group // most)
    return -(-group // parts)


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
