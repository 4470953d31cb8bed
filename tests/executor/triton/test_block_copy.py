"""Copies of blocks in one launch, within an arena, out of it and into it."""

from __future__ import annotations

import pytest
import torch

from executor.attention.triton import block_copy
from executor.attention.triton.block_copy import TritonCopier, fits
from executor.memory.arena import BlockArena, BlockLayout
from tests.executor.triton.vast_memory import vast_memory

# One piece a block and many, less than a tile and more, a tile exactly.
_LAYOUTS = {
    "layers": BlockLayout(torch.float16, (3, 2), (2, 16, 32)),
    "one piece": BlockLayout(torch.float32, (), (2, 3, 16, 32)),
    "8 bits": BlockLayout(torch.float8_e4m3fn, (4,), (64, 64)),
    "small": BlockLayout(torch.bfloat16, (2,), (32,)),
}
_each_layout = pytest.mark.parametrize("layout", _LAYOUTS.values(), ids=_LAYOUTS.keys())


def _arena(layout, num_blocks):
    """Any bits, NaN among them."""
    arena = BlockArena(layout, num_blocks=num_blocks, block_size=16, device=torch.device("cpu"))
    assert fits(arena)
    _bytes(arena.data).copy_(torch.randint(0, 256, _bytes(arena.data).shape))
    return arena


def _bytes(memory):
    return memory.view(torch.uint8)


def _blocks(arena):
    """Bytes of each block, [blocks, bytes]; a copy."""
    return _bytes(arena.blocks.contiguous()).flatten(1).clone()


@pytest.fixture
def launches(monkeypatch):
    """How many pairs each launch has."""
    counts = []
    launch = block_copy._copy

    def counting(source, target, pairs):
        counts.append(len(pairs))
        launch(source, target, pairs)

    monkeypatch.setattr(block_copy, "_copy", counting)
    return counts


@_each_layout
def test_many_blocks_are_copied_in_one_launch(rng, layout, launches):
    arena = _arena(layout, 24)
    before = _blocks(arena)
    sources, free = rng.permutation(24)[:6], rng.permutation(24)
    free = [int(block) for block in free if block not in sources][:10]
    pairs = [(int(rng.choice(sources)), block) for block in free]
    TritonCopier(arena).copy(pairs)
    for source, destination in pairs:
        before[destination] = before[source]
    assert torch.equal(_blocks(arena), before)
    assert launches == [10]


def test_chains_of_copies_act_one_after_another(rng, launches):
    arena = _arena(_LAYOUTS["small"], 8)
    expected = _blocks(arena)
    pairs = [(int(source), int(destination)) for source, destination in rng.integers(0, 8, (40, 2))]
    TritonCopier(arena).copy(pairs)
    for source, destination in pairs:
        expected[destination] = expected[source]
    assert torch.equal(_blocks(arena), expected)
    assert sum(launches) == 40


def test_nothing_to_copy(seed, launches):
    arena = _arena(_LAYOUTS["small"], 2)
    before = _blocks(arena)
    TritonCopier(arena).copy([])
    assert torch.equal(_blocks(arena), before)
    assert not launches


@_each_layout
def test_gathered_and_scattered_elsewhere(rng, layout, launches):
    arena = _arena(layout, 15)
    copier, before = TritonCopier(arena), _blocks(arena)
    blocks, others = (rng.permutation(15)[:5].tolist() for _ in range(2))
    # One place more than is asked for, which stays as it is.
    staged = torch.zeros((6, *arena.blocks.shape[1:]), dtype=layout.dtype)

    copier.gather(blocks, staged[:5])
    assert torch.equal(_bytes(staged).flatten(1)[:5], before[blocks])
    assert not _bytes(staged)[5].any()
    assert torch.equal(_blocks(arena), before)

    copier.scatter(staged[:5], others)
    expected = before.clone()
    expected[others] = before[blocks]
    assert torch.equal(_blocks(arena), expected)
    assert launches == [5, 5]


def test_blocks_that_lie_beyond_32_bits(seed):
    """Words of the last block of the last layer are more than 2 ** 32 after the first; between, nothing is touched."""
    layout = BlockLayout(torch.uint8, (2,), (1 << 12,))
    num_blocks = (9 << 30 >> 12) + 2
    memory = vast_memory(num_blocks * layout.bytes_per_block)
    arena = BlockArena(layout, num_blocks=num_blocks, block_size=16, device=torch.device("cpu"), memory=memory)
    last = num_blocks - 1
    arena.blocks[last].copy_(torch.randint(0, 256, (2, 1 << 12)))
    copier = TritonCopier(arena)
    copier.copy([(last, 1), (last, last - 1)])
    staged = torch.empty_like(arena.blocks[:1].contiguous())
    copier.gather([last - 1], staged)
    for block in (arena.blocks[1], arena.blocks[last - 1], staged[0]):
        assert torch.equal(block, arena.blocks[last])


@pytest.mark.parametrize("inner", [(), (7,), (3, 20)])
def test_pieces_that_are_no_multiples_of_64_bytes_are_for_another_copier(inner):
    layout = BlockLayout(torch.uint8, (2,), inner)
    assert not fits(BlockArena(layout, num_blocks=4, block_size=1, device=torch.device("cpu")))
