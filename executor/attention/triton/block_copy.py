"""Copies blocks with Triton: one launch for many blocks of all layers, whatever they hold."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from executor.attention.triton.kernel_spec import KernelSpec
from executor.attention.triton.kernels.block_copy import copy_blocks_kernel
from executor.memory.arena import BlockArena
from executor.memory.block_copier import BlockCopier, Pairs, independent_runs
from executor.transfers import index

_TILE = 1024
_WORD = torch.int32
# Pieces are multiples of so many bytes, so that a thread moves 16 at once: every layout of keys and values that a
# kernel attends to.
_PIECE_BYTES = 16 * _WORD.itemsize


def fits(arena: BlockArena) -> bool:
    """Whether the arena's blocks lie in pieces that the kernel can copy."""
    return arena.bytes_per_block // math.prod(arena.layout.outer) % _PIECE_BYTES == 0


class TritonCopier(BlockCopier):
    """One small copy of the list of blocks to the GPU, which nobody waits for, and one launch."""

    def __init__(self, arena: BlockArena) -> None:
        super().__init__(arena)
        self._pieces = math.prod(arena.layout.outer)
        self._words = arena.data.view(-1).view(_WORD).view(self._pieces, arena.num_blocks, -1).movedim(1, 0)

    def copy(self, pairs: Pairs) -> None:
        if not pairs:
            return
        uploaded, first = index(pairs, self._words), 0
        for run in independent_runs(pairs):
            _copy(self._words, self._words, uploaded[first : first + len(run)])
            first += len(run)

    def gather(self, blocks: Sequence[int], staged: torch.Tensor) -> None:
        pairs = [(block, place) for place, block in enumerate(blocks)]
        _copy(self._words, self._staged_words(staged), index(pairs, self._words))

    def scatter(self, staged: torch.Tensor, blocks: Sequence[int]) -> None:
        _copy(self._staged_words(staged), self._words, index(list(enumerate(blocks)), self._words))

    def _staged_words(self, staged: torch.Tensor) -> torch.Tensor:
        return staged.view(-1).view(_WORD).view(len(staged), self._pieces, -1)


def specs() -> list[KernelSpec]:
    """The only form that there is."""
    return [_SPEC]


def _copy(source: torch.Tensor, target: torch.Tensor, pairs: torch.Tensor) -> None:
    """Copies blocks of words, [blocks, pieces, words]; no pair touches what another one writes."""
    _, pieces, piece = source.shape
    tiles = -(-piece // _TILE)
    strides = (source.stride(0), source.stride(1), target.stride(0), target.stride(1))
    _SPEC.launch((len(pairs) * tiles, pieces), source, target, pairs, tiles, piece, *strides)


_STRIDES = ("source_block_stride", "source_piece_stride", "target_block_stride", "target_piece_stride")
_SPEC = KernelSpec(
    name="copy blocks",
    kernel=copy_blocks_kernel,
    signature={"source": "*i32", "target": "*i32", "pairs": "*i64", "tiles": "i32"}
    | dict.fromkeys(("piece", *_STRIDES), "i64"),
    constants={"TILE": _TILE},
    aligned=frozenset(("source", "target", "pairs", "piece", *_STRIDES)),
    num_warps=4,
    num_stages=1,
)
