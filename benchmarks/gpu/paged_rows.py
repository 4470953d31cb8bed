"""Rows of a step whose keys and values lie in blocks and, beside them, in one piece for each row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.shapes import Shape
from executor.attention import AnyBackend, StepLayout
from executor.memory.arena import BlockArena

# Blocks that no row has.
_SPARE_BLOCKS = 3


class PagedRows:
    """Rows, given as (new tokens, context length), over a fresh arena in which every number is NaN.

    Args:
        shared: tokens, a multiple of the block size, with which all rows begin; they have them in the same blocks.

    Attributes:
        backend: whose arena it is.
        layout: the step that computes the new tokens.
        cache: the layer that it computes.
        queries: [new tokens, heads, head_dim].
        keys, values: of each row, [context length, kv_heads, head_dim], as the model gives them.
    """

    def __init__(
        self,
        make_backend: Callable[[], AnyBackend],
        shape: Shape,
        block_size: int,
        rows: Sequence[tuple[int, int]],
        dtype: torch.dtype,
        kv_dtype: torch.dtype,
        generator: torch.Generator,
        shared: int = 0,
    ) -> None:
        self.backend, self.shape, self._device = make_backend(), shape, generator.device
        counts, lengths = [count for count, _ in rows], [length for _, length in rows]
        sizes = [-(-length // block_size) for length in lengths]
        num_blocks = sum(sizes) + _SPARE_BLOCKS
        order = torch.randperm(num_blocks, generator=generator, device=self._device).cpu().numpy()
        tables = np.split(order[: sum(sizes)], np.cumsum(sizes)[:-1])
        for table in tables:
            table[: shared // block_size] = tables[0][: shared // block_size]
        self.layout = StepLayout(counts, lengths, tables, block_size)

        layers = 2
        layout = self.backend.block_layout(shape.with_layers(layers).description(), block_size, kv_dtype)
        self._arena = BlockArena(layout, num_blocks=num_blocks, block_size=block_size, device=self._device)
        self._arena.data.view(torch.uint8).fill_(0xFF)  # NaN in every number format
        self.cache = self.backend.layer_caches(self._arena)[layers - 1]

        def random(tokens: int, heads: int) -> torch.Tensor:
            size = (tokens, heads, shape.head_dim)
            return torch.randn(size, generator=generator, device=self._device).to(dtype)

        self.queries = random(sum(counts), shape.heads)
        self.keys = [random(length, shape.kv_heads) for length in lengths]
        self.values = [random(length, shape.kv_heads) for length in lengths]
        for parts in (self.keys, self.values):
            for part in parts:
                part[:shared] = parts[0][:shared]

    def write_past(self, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        """Writes what is before the new tokens of these, each row's."""
        pasts = [
            length - count for count, length in zip(self.layout.num_tokens, self.layout.context_lengths, strict=True)
        ]
        rows = [row for row, past in enumerate(pasts) if past]
        if not rows:
            return
        lengths = [pasts[row] for row in rows]
        tables = [self.layout.block_tables[row] for row in rows]
        plan = self.backend.plan(StepLayout(lengths, lengths, tables, self.layout.block_size), self._device)
        first, second = (torch.cat([part[row][: pasts[row]] for row in rows]) for part in (keys, values))
        plan.write(self.cache, first, second)

    def bits(self) -> torch.Tensor:
        """All numbers of the arena, as integers."""
        return self._arena.data.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[self._arena.data.dtype.itemsize])

    def new(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The new tokens' entries of each row's, one row after the other."""
        return torch.cat([part[len(part) - count :] for part, count in zip(parts, self.layout.num_tokens, strict=True)])

    def plan(self) -> Any:
        return self.backend.plan(self.layout, self._device)
