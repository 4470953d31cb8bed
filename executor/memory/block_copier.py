"""Copies blocks within an arena, and between an arena and memory in which they lie one after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import torch

from executor.attention.triton.availability import triton_obstacle
from executor.memory.arena import BlockArena
from executor.transfers import index

Pairs = Sequence[tuple[int, int]]


class BlockCopier(ABC):
    """Copies many blocks of all layers in a call, in the device's current stream.

    "Staged" memory holds blocks as `BlockArena.blocks` shows them, each in one piece: [number, *outer, *inner].
    """

    def __init__(self, arena: BlockArena) -> None:
        self._arena = arena

    @abstractmethod
    def copy(self, pairs: Pairs) -> None:
        """Copies blocks (source, destination), as if one pair after another."""

    @abstractmethod
    def gather(self, blocks: Sequence[int], staged: torch.Tensor) -> None:
        """Copies blocks to staged memory, the first one to the first place there."""

    @abstractmethod
    def scatter(self, staged: torch.Tensor, blocks: Sequence[int]) -> None:
        """Copies what is staged to blocks, of which no two are the same."""


def make_copier(arena: BlockArena) -> BlockCopier:
    """The fastest for the arena's GPU."""
    device = arena.data.device
    if triton_obstacle(device, torch.cuda.get_device_capability(device)) is None:
        # Only where there is Triton.
        from executor.attention.triton.block_copy import TritonCopier, fits

        if fits(arena):
            return TritonCopier(arena)
    return IndexedCopier(arena)


class IndexedCopier(BlockCopier):
    """In a few calls of torch."""

    def copy(self, pairs: Pairs) -> None:
        memory = self._arena.blocks
        for run in independent_runs(pairs):
            sources, destinations = zip(*run, strict=True)
            memory.index_copy_(0, index(destinations, memory), memory.index_select(0, index(sources, memory)))

    def gather(self, blocks: Sequence[int], staged: torch.Tensor) -> None:
        torch.index_select(self._arena.blocks, 0, index(blocks, staged), out=staged)

    def scatter(self, staged: torch.Tensor, blocks: Sequence[int]) -> None:
        self._arena.blocks.index_copy_(0, index(blocks, staged), staged)


def independent_runs(pairs: Iterable[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Cuts the pairs into runs, each of which can be copied in any order: none touches what another one writes."""
    runs: list[list[tuple[int, int]]] = []
    read: set[int] = set()
    written: set[int] = set()
    for source, destination in pairs:
        if not runs or source in written or destination in written or destination in read:
            runs.append([])
            read.clear()
            written.clear()
        runs[-1].append((source, destination))
        read.add(source)
        written.add(destination)
    return runs
