"""Blocks that are copied, swapped out and swapped in again, against what must be where, byte for byte."""

from __future__ import annotations

import random
import time

import torch

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.results import Checks
from executor.memory.arena import BlockArena, BlockLayout
from executor.memory.block_mover import make_mover
from executor.memory.host_arena import HostArena
from executor.timer import Timer

Pairs = list[tuple[int, int]]


def check_moves(machine: Machine, layout: BlockLayout, block_size: int, checks: Checks, seed: int) -> None:
    """Checks fresh moves.

    Args:
        layout: of the arena.
    """
    for number in range(2 if machine.tiny else 5):
        checks.holds(
            "block moves",
            lambda number=number: _Moves(machine, layout, block_size, seed + number).hold(),  # type: ignore[misc]
            block_size=block_size,
            seed=seed + number,
        )


class _Moves:
    """An arena and its host arena, and beside them what each block should hold."""

    def __init__(self, machine: Machine, layout: BlockLayout, block_size: int, seed: int) -> None:
        self._rng = random.Random(seed)
        count = 12 if machine.tiny else 600
        self._arena = BlockArena(layout, num_blocks=count, block_size=block_size, device=machine.device)
        self._host = HostArena(self._arena, count // 2)
        self._mover = make_mover(self._arena, self._host, Timer(machine.device, time.perf_counter))
        generator = machine.generator(seed)
        data = self._arena.data.view(torch.uint8)
        data.copy_(torch.randint(0, 256, data.shape, generator=generator, device=machine.device, dtype=torch.uint8))
        self._expected = [self._device_block(block) for block in range(count)]
        self._expected_host: dict[int, torch.Tensor] = {}

    def hold(self) -> bool:
        """Makes a few moves of each kind, one after the other without waiting, and compares all blocks."""
        count, host_count = self._arena.num_blocks, self._host.num_blocks
        for _ in range(3):
            self._copy([(self._rng.randrange(count), self._rng.randrange(count)) for _ in range(count // 3)])
            self._swap_out(self._pairs(count, host_count))
            self._copy([(self._rng.randrange(count), self._rng.randrange(count)) for _ in range(count // 3)])
            held = list(self._expected_host)
            blocks = self._rng.sample(range(count), len(held))
            self._swap_in(list(zip(held, blocks, strict=True)))
        if self._arena.data.is_cuda:
            torch.cuda.synchronize()
        return all(
            torch.equal(self._device_block(block), expected) for block, expected in enumerate(self._expected)
        ) and all(torch.equal(self._host_block(block), expected) for block, expected in self._expected_host.items())

    def _pairs(self, sources: int, targets: int) -> Pairs:
        number = self._rng.randrange(1, targets)
        return list(
            zip(self._rng.sample(range(sources), number), self._rng.sample(range(targets), number), strict=True)
        )

    def _copy(self, pairs: Pairs) -> None:
        pairs = [(source, target) for source, target in pairs if source != target]
        self._mover.copy(pairs)
        for source, target in pairs:
            self._expected[target] = self._expected[source]

    def _swap_out(self, pairs: Pairs) -> None:
        self._mover.swap_out(pairs)
        self._expected_host |= {target: self._expected[source] for source, target in pairs}

    def _swap_in(self, pairs: Pairs) -> None:
        self._mover.swap_in(pairs)
        for source, target in pairs:
            self._expected[target] = self._expected_host[source]

    def _device_block(self, block: int) -> torch.Tensor:
        return self._arena.blocks[block].contiguous().view(torch.uint8).cpu()

    def _host_block(self, block: int) -> torch.Tensor:
        return self._host.data[block].contiguous().view(torch.uint8).clone()
