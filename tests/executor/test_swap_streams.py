"""Swaps in streams of their own: what they read and write is what it would be without one, and others go on."""

from __future__ import annotations

import random

import pytest
import torch

from executor.memory import block_mover
from executor.memory.arena import BlockArena, BlockLayout
from executor.memory.block_copier import IndexedCopier
from executor.memory.block_mover import StreamMover
from executor.memory.host_arena import HostArena
from executor.timer import Timer
from tests.executor.streams import Streams

_LAYOUT = BlockLayout(torch.int32, (2,), (3,))
_NUM_BLOCKS, _NUM_HOST_BLOCKS = 12, 11
# What one buffer holds, and all of them.
_BUFFER_BLOCKS, _BUFFERS_BLOCKS = 2, 8
_CPU = torch.device("cpu")


class _Machine:
    """An arena, a host's memory and what moves blocks between them, in streams of which nothing runs yet."""

    def __init__(self, monkeypatch):
        monkeypatch.setattr(block_mover, "_BUFFER_BYTES", _BUFFER_BLOCKS * _LAYOUT.bytes_per_block)
        self.streams = Streams(monkeypatch)
        self.arena = BlockArena(_LAYOUT, num_blocks=_NUM_BLOCKS, block_size=1, device=_CPU)
        self.host = HostArena(self.arena, _NUM_HOST_BLOCKS)
        self.arena.data.copy_(torch.arange(self.arena.data.numel()).view_as(self.arena.data))
        self.host.data.copy_(-torch.arange(self.host.data.numel()).view_as(self.host.data))
        with self.streams:
            self.mover = StreamMover(self.arena, self.host, Timer(_CPU, lambda: 0.0), IndexedCopier(self.arena))
        self.read = []

    def compute(self, reads, writes, number):
        """A step: reads some blocks, then writes others."""
        for block in reads:
            self.read.append(torch.zeros_like(self.arena.blocks[block]))
            self.read[-1].copy_(self.arena.blocks[block])
        for block in writes:
            self.arena.blocks[block].copy_(torch.full_like(self.arena.blocks[block], number))


class _Expected:
    """The same, one after the other."""

    def __init__(self, machine):
        self.blocks, self.host = machine.arena.blocks.clone(), machine.host.data.clone()
        self.read = []

    def compute(self, reads, writes, number):
        self.read += [self.blocks[block].clone() for block in reads]
        self.blocks[writes] = number

    def swap_out(self, pairs):
        for block, host_block in pairs:
            self.host[host_block] = self.blocks[block]

    def swap_in(self, pairs):
        for host_block, block in pairs:
            self.blocks[block] = self.host[host_block]

    def copy(self, pairs):
        for source, destination in pairs:
            self.blocks[destination] = self.blocks[source]


def _pairs(rng, sources, destinations):
    count = rng.choice((1, 2, 3, 10))
    return list(zip(rng.choices(range(sources), k=count), rng.sample(range(destinations), count), strict=True))


def _steps(rng):
    """Some calls in the order of steps: swaps out, swaps in, copies, computing; any of them may be missing."""
    for number in range(1, 9):
        if rng.random() < 0.6:
            yield "swap_out", (_pairs(rng, _NUM_BLOCKS, _NUM_HOST_BLOCKS),)
        if rng.random() < 0.6:
            yield "swap_in", (_pairs(rng, _NUM_HOST_BLOCKS, _NUM_BLOCKS),)
        if rng.random() < 0.3:
            yield "copy", (_pairs(rng, _NUM_BLOCKS, _NUM_BLOCKS),)
        if rng.random() < 0.8:
            blocks = rng.sample(range(_NUM_BLOCKS), 6)
            yield "compute", (blocks[:3], blocks[3:], 1000 * number)


def test_whatever_order_streams_run_in_it_is_as_one_after_the_other(monkeypatch):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(100):
        machine = _Machine(monkeypatch)
        expected = _Expected(machine)
        for name, arguments in _steps(rng):
            with machine.streams:
                getattr(machine if name == "compute" else machine.mover, name)(*arguments)
            getattr(expected, name)(*arguments)
            machine.streams.run(rng, most=rng.choice((0, 0, 5, 50)))
        machine.streams.run(rng)
        assert torch.equal(machine.arena.blocks, expected.blocks)
        assert torch.equal(machine.host.data, expected.host)
        for got, wanted in zip(machine.read, expected.read, strict=True):
            assert torch.equal(got, wanted)


@pytest.fixture
def machine(monkeypatch):
    machine = _Machine(monkeypatch)
    machine.streams.run(random.Random(0))
    return machine


def _run(*streams):
    while any(stream.advance() for stream in streams):
        pass


def _neighbours(first, number):
    return [(block, block) for block in range(first, first + number)]


def test_computing_does_not_wait_for_the_bus_where_the_buffers_hold_what_is_swapped_out(machine):
    with machine.streams:
        machine.mover.swap_out(_neighbours(0, _BUFFERS_BLOCKS))
        machine.compute([5], [0, 1, 2, 3], 7)
    _run(machine.streams.computing)
    assert not machine.streams.computing.length
    assert (machine.arena.blocks[:4] == 7).all()


def test_what_is_swapped_in_comes_over_the_bus_while_the_steps_before_run(machine):
    _, into = machine.streams.others
    with machine.streams:
        machine.compute([0], [1], 7)
        machine.mover.swap_in(_neighbours(0, _BUFFERS_BLOCKS))
    _run(into)
    assert not into.length
    machine.streams.run(random.Random(0))
    assert torch.equal(machine.arena.blocks[:_BUFFERS_BLOCKS], machine.host.data[:_BUFFERS_BLOCKS])


def test_what_is_swapped_in_does_not_wait_for_other_blocks_to_get_out(machine):
    _, into = machine.streams.others
    with machine.streams:
        machine.mover.swap_out(_neighbours(0, 4))
        machine.mover.swap_in(_neighbours(4, 4))
        machine.compute([0], [1], 7)
    _run(machine.streams.computing, into)
    assert not machine.streams.computing.length
    assert torch.equal(machine.arena.blocks[4:8], machine.host.data[4:8])
