"""Copies of blocks: one after another in their effect, however many there are in a call."""

from __future__ import annotations

import random

import pytest
import torch

from executor.memory.arena import BlockArena, BlockLayout
from executor.memory.block_copier import IndexedCopier, independent_runs, make_copier
from executor.memory.block_mover import DirectMover
from executor.memory.host_arena import HostArena
from executor.timer import Timer

# With the blocks as the first, an inner and the last dimension.
_LAYOUTS = {
    "blocks outside": BlockLayout(torch.float32, (), (3, 10)),
    "blocks inside": BlockLayout(torch.bfloat16, (3, 2), (4, 2, 8)),
    "numbers": BlockLayout(torch.uint8, (5,), ()),
}
_each_layout = pytest.mark.parametrize("layout", _LAYOUTS.values(), ids=_LAYOUTS.keys())


def _arena(layout, num_blocks=6, device="cpu"):
    """Each block holds its number."""
    arena = BlockArena(layout, num_blocks=num_blocks, block_size=4, device=torch.device(device))
    for number, block in enumerate(arena.blocks):
        block.fill_(number)
    return arena


def _directly(arena, pairs):
    DirectMover(arena, HostArena(arena, 0), Timer(torch.device("cpu"), lambda: 0.0)).copy(pairs)


def _indexed(arena, pairs):
    IndexedCopier(arena).copy(pairs)


def _on_gpu(arena, pairs):
    on_gpu = BlockArena(arena.layout, num_blocks=arena.num_blocks, block_size=4, device=torch.device("cuda"))
    on_gpu.data.copy_(arena.data)
    make_copier(on_gpu).copy(pairs)
    arena.data.copy_(on_gpu.data)


_each_copier = pytest.mark.parametrize(
    "copy",
    [
        _directly,
        _indexed,
        pytest.param(_on_gpu, marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")),
    ],
)


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([], [0, 1, 2, 3, 4, 5]),
        ([(0, 3), (1, 4)], [0, 1, 2, 0, 1, 5]),
        ([(0, 3), (0, 4), (0, 5)], [0, 1, 2, 0, 0, 0]),
        ([(0, 1), (2, 0)], [2, 0, 2, 3, 4, 5]),  # the source is overwritten after it was read
        ([(2, 0), (0, 1)], [2, 2, 2, 3, 4, 5]),  # a copy of a copy
        ([(2, 0), (3, 0)], [3, 1, 2, 3, 4, 5]),
        ([(0, 1), (1, 2), (2, 3), (5, 1)], [0, 5, 0, 0, 4, 5]),
    ],
)
@_each_copier
@_each_layout
def test_copies_act_one_after_another_in_all_layers(pairs, expected, copy, layout):
    arena = _arena(layout)
    copy(arena, pairs)
    for block, number in zip(arena.blocks, expected, strict=True):
        assert (block == number).all()


@_each_copier
@_each_layout
def test_many_copies(copy, layout):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    arena, expected = _arena(layout, 60), list(range(60))
    pairs = [(rng.randrange(60), rng.randrange(60)) for _ in range(100)]
    copy(arena, pairs)
    for source, destination in pairs:
        expected[destination] = expected[source]
    for block, number in zip(arena.blocks, expected, strict=True):
        assert (block == number).all()


def test_a_run_may_be_copied_in_any_order():
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    pairs = [(rng.randrange(20), rng.randrange(20)) for _ in range(300)]
    runs = independent_runs(pairs)
    assert [pair for run in runs for pair in run] == pairs
    held, expected = list(range(20)), list(range(20))
    for source, destination in pairs:
        expected[destination] = expected[source]
    for run in runs:
        for source, destination in rng.sample(run, len(run)):
            held[destination] = held[source]
    assert held == expected


def test_copies_to_blocks_that_nobody_uses_are_one_run():
    """As in any step: those that share a block get copies of it, in blocks that were free."""
    assert len(independent_runs([(0, 9), (0, 8), (3, 7), (1, 6), (3, 5)])) == 1
