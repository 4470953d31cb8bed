"""One layer's keys and values as the kernels read and write them."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class BlockCache:
    """Keys and values by block, each [num_blocks, kv_heads, block_size, head_dim].

    Slot s is entry s % block_size of block s // block_size. All of a block is in one piece; blocks may lie apart.
    """

    keys: torch.Tensor
    values: torch.Tensor
