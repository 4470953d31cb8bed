"""Moves blocks: from the device to the host, back, and on the device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from executor.arena import BlockArena
from executor.host_arena import HostArena
from executor.timer import Span, Timer

Pairs = Sequence[tuple[int, int]]

# Blocks pass through device memory that is taken for the moment, so much of it at most.
_STAGING_BYTES = 64 << 20


class BlockMover(ABC):
    """Copies many blocks in a call. What comes after a call in the arena's device finds it done."""

    def __init__(self, arena: BlockArena, host: HostArena, timer: Timer) -> None:
        self._arena = arena
        self._host = host
        self._timer = timer

    @abstractmethod
    def swap_out(self, pairs: Pairs) -> Span:
        """Copies (device block, host block); no two to the same one."""

    @abstractmethod
    def swap_in(self, pairs: Pairs) -> Span:
        """Copies (host block, device block); no two to the same one."""

    def copy(self, pairs: Pairs) -> Span:
        """Copies (source, destination) on the device, as if one pair after another."""
        start = self._timer.mark()
        self._arena.copy_blocks(pairs)
        return Span(start, self._timer.mark())


def make_mover(arena: BlockArena, host: HostArena, timer: Timer) -> BlockMover:
    """The one for the arena's device."""
    return StreamMover(arena, host, timer) if arena.data.is_cuda else DirectMover(arena, host, timer)


class DirectMover(BlockMover):
    """On a CPU: all is done when a call returns."""

    def swap_out(self, pairs: Pairs) -> Span:
        start = self._timer.mark()
        # One block after the other took about half the time of indexed copies of all of them.
        for block, host_block in pairs:
            self._host.data[host_block].copy_(self._arena.blocks[block])
        return Span(start, self._timer.mark())

    def swap_in(self, pairs: Pairs) -> Span:
        start = self._timer.mark()
        for host_block, block in pairs:
            self._arena.blocks[block].copy_(self._host.data[host_block])
        return Span(start, self._timer.mark())


class StreamMover(BlockMover):
    """On a GPU: swaps run in a stream of their own. Computing waits until the blocks are read, or there, no longer.

    Swaps follow one another in that stream, so that a block swapped out is whole on the host before it is swapped in.
    """

    def __init__(self, arena: BlockArena, host: HostArena, timer: Timer) -> None:
        super().__init__(arena, host, timer)
        self._device = arena.data.device
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]  # torch has no types here
        self._chunk = max(1, _STAGING_BYTES // arena.bytes_per_block)

    def swap_out(self, pairs: Pairs) -> Span:
        computing = torch.cuda.current_stream(self._device)
        # The blocks must hold what the steps before have written.
        self._stream.wait_stream(computing)
        with torch.cuda.stream(self._stream):
            start = self._timer.mark()
            gathered = self._stream.record_event()
            for chunk in _chunks(_by_host_block(pairs, 1), self._chunk):
                staged = gather(self._arena.blocks, [block for block, _ in chunk])
                gathered = self._stream.record_event()
                unstage(staged, self._host.data, [host_block for _, host_block in chunk])
            end = self._timer.mark()
        # Computing may overwrite the blocks once they are in the staging memory; the way to the host overlaps with it.
        computing.wait_event(gathered)
        return Span(start, end)

    def swap_in(self, pairs: Pairs) -> Span:
        computing = torch.cuda.current_stream(self._device)
        # Steps before may still read what the blocks hold now.
        self._stream.wait_stream(computing)
        with torch.cuda.stream(self._stream):
            start = self._timer.mark()
            for chunk in _chunks(_by_host_block(pairs, 0), self._chunk):
                staged = stage(self._host.data, [host_block for host_block, _ in chunk], self._device)
                scatter(staged, self._arena.blocks, [block for _, block in chunk])
            end = self._timer.mark()
        computing.wait_stream(self._stream)
        return Span(start, end)


def gather(memory: torch.Tensor, blocks: Sequence[int]) -> torch.Tensor:
    """Some of `BlockArena.blocks`, each contiguous."""
    index = torch.tensor(blocks, dtype=torch.int64, device=memory.device)
    return memory.index_select(0, index).contiguous()


def scatter(staged: torch.Tensor, memory: torch.Tensor, blocks: Sequence[int]) -> None:
    """Writes what `gather` gives into `BlockArena.blocks`."""
    index = torch.tensor(blocks, dtype=torch.int64, device=memory.device)
    memory.index_copy_(0, index, staged)


def unstage(staged: torch.Tensor, host: torch.Tensor, host_blocks: Sequence[int]) -> None:
    """Copies staged blocks to the host, neighbours in one piece; returns before that is done."""
    for start, end in _neighbours(host_blocks):
        first = host_blocks[start]
        host[first : first + end - start].copy_(staged[start:end], non_blocking=True)


def stage(host: torch.Tensor, host_blocks: Sequence[int], device: torch.device) -> torch.Tensor:
    """Copies the host's blocks to staging memory, neighbours in one piece; returns before that is done."""
    staged = torch.empty((len(host_blocks), *host.shape[1:]), dtype=host.dtype, device=device)
    for start, end in _neighbours(host_blocks):
        first = host_blocks[start]
        staged[start:end].copy_(host[first : first + end - start], non_blocking=True)
    return staged


def _neighbours(blocks: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges [start, end) of the list in which each block follows the one before."""
    starts = [i for i in range(len(blocks)) if i == 0 or blocks[i] != blocks[i - 1] + 1]
    return list(zip(starts, [*starts[1:], len(blocks)], strict=True))


def _by_host_block(pairs: Pairs, side: int) -> list[tuple[int, int]]:
    """Sorted by the host block, which is the pair's entry `side`, so that neighbours come together."""
    return sorted(pairs, key=lambda pair: pair[side])


def _chunks(pairs: list[tuple[int, int]], size: int) -> list[list[tuple[int, int]]]:
    return [pairs[i : i + size] for i in range(0, len(pairs), size)]
