"""The memory that holds keys and values, cut into blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """How an arena's memory is arranged, which is the business of the attention that reads it.

    Attributes:
        dtype: of its elements.
        outer: sizes of the dimensions before that of the blocks.
        inner: sizes of the dimensions after it.
    """

    dtype: torch.dtype
    outer: tuple[int, ...]
    inner: tuple[int, ...]

    @property
    def bytes_per_block(self) -> int:
        """Size of one block: keys and values of all layers, and what the layout adds to them."""
        return math.prod(self.outer) * math.prod(self.inner) * self.dtype.itemsize


class BlockArena:
    """All layers' keys and values: `num_blocks` blocks of `block_size` tokens.

    The memory is not initialised: what a slot holds before it is first written is arbitrary.

    Args:
        memory: bytes to lie in, at least `num_blocks * layout.bytes_per_block` of them; new memory where None.

    Attributes:
        layout: as given.
        data: [*outer, num_blocks, *inner].
        blocks: the same memory by block, [num_blocks, *outer, *inner].
    """

    def __init__(
        self,
        layout: BlockLayout,
        *,
        num_blocks: int,
        block_size: int,
        device: torch.device,
        memory: torch.Tensor | None = None,
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks and block_size must be at least 1, not {num_blocks} and {block_size}")
        self.layout = layout
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.bytes_per_block = layout.bytes_per_block
        shape = (*layout.outer, num_blocks, *layout.inner)
        if memory is None:
            self.data = torch.empty(shape, dtype=layout.dtype, device=device)
        else:
            self.data = memory[: num_blocks * layout.bytes_per_block].view(layout.dtype).view(shape)
        self.blocks = self.data.movedim(len(layout.outer), 0)
