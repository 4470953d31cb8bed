"""Moves blocks: from the device to the host, back, and on the device."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from executor.memory.arena import BlockArena
from executor.memory.block_copier import BlockCopier, Pairs, make_copier
from executor.memory.host_arena import HostArena
from executor.timer import Mark, Span, Timer

# Blocks pass through device memory on their way, through a few buffers in turns, each of so many bytes at most.
_BUFFER_BYTES = 32 << 20
_NUM_BUFFERS = 4


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

    @abstractmethod
    def copy(self, pairs: Pairs) -> Span:
        """Copies (source, destination) on the device, as if one pair after another."""


def make_mover(arena: BlockArena, host: HostArena, timer: Timer) -> BlockMover:
    """The one for the arena's device."""
    if arena.data.is_cuda:
        return StreamMover(arena, host, timer, make_copier(arena))
    return DirectMover(arena, host, timer)


def staging_bytes(bytes_per_block: int) -> int:
    """The most device memory that a mover on a GPU takes, where there are blocks on the host."""
    return _NUM_BUFFERS * _buffer_blocks(bytes_per_block) * bytes_per_block


def _buffer_blocks(bytes_per_block: int) -> int:
    return max(1, _BUFFER_BYTES // bytes_per_block)


class DirectMover(BlockMover):
    """On a CPU: all is done when a call returns.

    One block after the other takes a quarter to a half of the time of indexed copies of all of them.
    """

    def swap_out(self, pairs: Pairs) -> Span:
        return self._copy(self._arena.blocks, self._host.data, pairs)

    def swap_in(self, pairs: Pairs) -> Span:
        return self._copy(self._host.data, self._arena.blocks, pairs)

    def copy(self, pairs: Pairs) -> Span:
        return self._copy(self._arena.blocks, self._arena.blocks, pairs)

    def _copy(self, source: torch.Tensor, target: torch.Tensor, pairs: Pairs) -> Span:
        start = self._timer.mark()
        for from_block, to_block in pairs:
            target[to_block].copy_(source[from_block])
        return Span(start, self._timer.mark())


@dataclass(slots=True)
class _Buffer:
    """Staging memory, and from when on it may be used again.

    Attributes:
        blocks: as `BlockCopier` has them.
        free: what last used it is done.
    """

    blocks: torch.Tensor
    free: torch.cuda.Event


class _Leaving:
    """Swaps out that may not be done, and the host's blocks that they write."""

    def __init__(self) -> None:
        self._swaps: list[tuple[torch.cuda.Event, frozenset[int]]] = []

    def add(self, event: torch.cuda.Event, host_blocks: Iterable[int]) -> None:
        """A swap that is done when the event is over."""
        self._swaps = [
            swap
            for swap in self._swaps
            if not swap[0].query()  # type: ignore[no-untyped-call]
        ]
        self._swaps.append((event, frozenset(host_blocks)))

    def hold(self, stream: torch.cuda.Stream, host_blocks: Sequence[int]) -> None:
        """Makes a stream wait for those that write any of these."""
        for event, written in self._swaps:
            if not written.isdisjoint(host_blocks):
                stream.wait_event(event)


class StreamMover(BlockMover):
    """On a GPU: what goes over the bus does so in streams of its own, one for each direction, while others compute.

    Blocks are read and written only in the stream that computes: a block that is swapped out holds what the steps
    before have written, one that is swapped in is written after they have read what it held. The streams meet in the
    staging buffers, where an event says when one is full, another when it is free; and at the host's blocks. What is
    swapped in waits until it is whole there. It isn't overwritten before it is read: a later swap out comes after
    computing has it.

    Computing goes on once the blocks that are swapped out are in the buffers, which is at once as long as all of them
    fit. What is swapped in comes over the bus while the steps before still run. A span is of the bus.
    """

    def __init__(self, arena: BlockArena, host: HostArena, timer: Timer, copier: BlockCopier) -> None:
        super().__init__(arena, host, timer)
        self._copier = copier
        self._device = arena.data.device
        self._out = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]  # torch has no types here
        self._in = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._leaving = _Leaving()
        buffer_blocks = min(_buffer_blocks(arena.bytes_per_block), host.num_blocks, arena.num_blocks)
        self._chunk = max(1, buffer_blocks)
        self._buffers = itertools.cycle([self._buffer(buffer_blocks) for _ in range(_NUM_BUFFERS)])

    def swap_out(self, pairs: Pairs) -> Span:
        computing = torch.cuda.current_stream(self._device)
        # Copies wait for the steps before anyway; the span is not to contain that.
        self._out.wait_stream(computing)
        start = self._mark(self._out)
        for chunk in _chunks(_by_host_block(pairs, 1), self._chunk):
            buffer = next(self._buffers)
            staged = buffer.blocks[: len(chunk)]
            computing.wait_event(buffer.free)
            self._copier.gather([block for block, _ in chunk], staged)
            self._out.wait_event(computing.record_event())
            with torch.cuda.stream(self._out):
                unstage(staged, self._host.data, [host_block for _, host_block in chunk])
            buffer.free = self._out.record_event()
        self._leaving.add(self._out.record_event(), (host_block for _, host_block in pairs))
        return Span(start, self._mark(self._out))

    def swap_in(self, pairs: Pairs) -> Span:
        computing = torch.cuda.current_stream(self._device)
        chunks = _chunks(_by_host_block(pairs, 0), self._chunk)
        self._leaving.hold(self._in, [host_block for host_block, _ in pairs])
        if len(chunks) > _NUM_BUFFERS:
            # A buffer that is used twice waits for the steps before; the span is not to contain that.
            self._in.wait_stream(computing)
        start = self._mark(self._in)
        for chunk in chunks:
            buffer = next(self._buffers)
            staged = buffer.blocks[: len(chunk)]
            self._in.wait_event(buffer.free)
            with torch.cuda.stream(self._in):
                stage(self._host.data, [host_block for host_block, _ in chunk], staged)
            computing.wait_event(self._in.record_event())
            self._copier.scatter(staged, [block for _, block in chunk])
            buffer.free = computing.record_event()
        return Span(start, self._mark(self._in))

    def copy(self, pairs: Pairs) -> Span:
        start = self._timer.mark()
        self._copier.copy(pairs)
        return Span(start, self._timer.mark())

    def _mark(self, stream: torch.cuda.Stream) -> Mark:
        with torch.cuda.stream(stream):
            return self._timer.mark()

    def _buffer(self, num_blocks: int) -> _Buffer:
        shape = (num_blocks, *self._arena.blocks.shape[1:])
        blocks = torch.empty(shape, dtype=self._arena.data.dtype, device=self._device)
        # When the mover goes, its memory may not be another's before the swaps under way are done.
        blocks.record_stream(self._out)
        blocks.record_stream(self._in)
        return _Buffer(blocks, torch.cuda.current_stream(self._device).record_event())


def unstage(staged: torch.Tensor, host: torch.Tensor, host_blocks: Sequence[int]) -> None:
    """Copies staged blocks to the host, neighbours in one piece; on a GPU it returns before that is done."""
    for start, end in _neighbours(host_blocks):
        first = host_blocks[start]
        host[first : first + end - start].copy_(staged[start:end], non_blocking=True)


def stage(host: torch.Tensor, host_blocks: Sequence[int], staged: torch.Tensor) -> None:
    """Copies the host's blocks to staging memory, neighbours in one piece; on a GPU it returns before that is done."""
    for start, end in _neighbours(host_blocks):
        first = host_blocks[start]
        staged[start:end].copy_(host[first : first + end - start], non_blocking=True)


def _neighbours(blocks: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges [start, end) of the list in which each block follows the one before."""
    starts = [i for i in range(len(blocks)) if i == 0 or blocks[i] != blocks[i - 1] + 1]
    return list(zip(starts, [*starts[1:], len(blocks)], strict=True))


def _by_host_block(pairs: Pairs, side: int) -> list[tuple[int, int]]:
    """Sorted by the host block, which is the pair's entry `side`, so that neighbours come together."""
    return sorted(pairs, key=lambda pair: pair[side])


def _chunks(pairs: list[tuple[int, int]], size: int) -> list[list[tuple[int, int]]]:
    return [pairs[i : i + size] for i in range(0, len(pairs), size)]
