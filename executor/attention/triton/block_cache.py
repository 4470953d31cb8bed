"""One layer's keys and values as the kernels read and write them."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class BlockCache:
    """Keys and values by block, each [num_blocks, kv_heads, block_size, head_dim].

    Slot s is entry s % block_size of block s // block_size. All of a block is in one piece; blocks may lie apart.

    Raises:
        ValueError: they lie otherwise, or not alike; or block_size is no power of two.
    """

    keys: torch.Tensor
    values: torch.Tensor

    def __post_init__(self) -> None:
        keys, values = self.keys, self.values
        if self.block_size & (self.block_size - 1):
            raise ValueError(f"block_size must be a power of two, not {self.block_size}")
        if keys.shape != values.shape or keys.stride() != values.stride() or keys.dtype != values.dtype:
            raise ValueError("a cache's keys and values must have the same shape, type and strides")
        if not keys[0].is_contiguous():
            raise ValueError(f"a cache's blocks must each be contiguous; strides are {keys.stride()}")

    @property
    def block_size(self) -> int:
        return self.keys.shape[2]

    @property
    def slot_bits(self) -> int:
        """Of a slot's number, how many say where in its block it is."""
        return self.block_size.bit_length() - 1
