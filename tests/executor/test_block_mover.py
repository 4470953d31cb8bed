"""Blocks between device and host, in bulk and one by one."""

from __future__ import annotations

import random

import pytest
import torch

from executor.attention import ReferenceAttention
from executor.families.llama import describe
from executor.memory import block_mover
from executor.memory.arena import BlockArena, BlockLayout
from executor.memory.block_copier import IndexedCopier
from executor.memory.block_mover import make_mover, stage, staging_bytes, unstage
from executor.memory.host_arena import HostArena
from executor.timer import Timer

_MODEL = describe(
    {
        "vocab_size": 32,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
)
_CPU = torch.device("cpu")
_DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")),
]


_LAYOUTS = {
    "blocks inside": ReferenceAttention().block_layout(_MODEL, 4, torch.bfloat16),
    "blocks outside": BlockLayout(torch.uint8, (), (3, 128)),
}
_each_layout = pytest.mark.parametrize("layout", _LAYOUTS.values(), ids=_LAYOUTS.keys())


def _arenas(layout, device="cpu"):
    arena = BlockArena(layout, num_blocks=40, block_size=4, device=torch.device(device))
    host = HostArena(arena, 30)
    for data in (arena.data, host.data):
        data.copy_(torch.randint(0, 256, data.shape))
    return arena, host


@_each_layout
def test_a_host_block_is_as_large_as_a_device_block(layout):
    arena, host = _arenas(layout)
    assert host.data[0].nbytes == arena.bytes_per_block
    assert HostArena(arena, 0).num_blocks == 0


def test_the_host_arena_lies_in_memory_that_is_given():
    arena, _ = _arenas(_LAYOUTS["blocks inside"])
    memory = torch.zeros(3 * arena.bytes_per_block + 64, dtype=torch.uint8)
    host = HostArena(arena, 3, memory)
    host.data.fill_(1)
    assert host.data.data_ptr() == memory.data_ptr()
    assert not memory[3 * arena.bytes_per_block :].any()


@_each_layout
@pytest.mark.parametrize("device", _DEVICES)
def test_there_and_back(layout, device):
    arena, host = _arenas(layout, device)
    mover = make_mover(arena, host, Timer(torch.device(device), lambda: 0.0))
    rng = random.Random(0)
    blocks, host_blocks, others = rng.sample(range(40), 20), rng.sample(range(30), 20), rng.sample(range(40), 20)
    before, on_host = arena.blocks.clone(), host.data.clone()
    mover.swap_out(list(zip(blocks, host_blocks, strict=True)))
    arena.data.zero_()
    mover.swap_in(list(zip(host_blocks, others, strict=True)))
    for block, host_block, other in zip(blocks, host_blocks, others, strict=True):
        assert torch.equal(arena.blocks[other], before[block])
        assert torch.equal(host.data[host_block], before[block].cpu())
    for other in set(range(40)) - set(others):
        assert not arena.blocks[other].any()
    for host_block in set(range(30)) - set(host_blocks):
        assert torch.equal(host.data[host_block], on_host[host_block])


@_each_layout
@pytest.mark.parametrize("device", _DEVICES)
def test_one_host_block_may_come_in_twice(layout, device):
    arena, host = _arenas(layout, device)
    make_mover(arena, host, Timer(torch.device(device), lambda: 0.0)).swap_in([(3, 9), (4, 8), (3, 7)])
    for host_block, block in ((3, 9), (4, 8), (3, 7)):
        assert torch.equal(arena.blocks[block].cpu(), host.data[host_block])


@_each_layout
@pytest.mark.parametrize("host_blocks", [[5], [3, 4, 5, 6], [9, 2, 3, 8, 10, 4]])
def test_what_goes_through_staging_memory_is_what_goes_directly(layout, host_blocks):
    """The two ways that a GPU's blocks take, here on the CPU."""
    arena, host = _arenas(layout)
    copier = IndexedCopier(arena)
    before, on_host = arena.blocks.clone(), host.data.clone()
    blocks = random.Random(1).sample(range(40), len(host_blocks))
    staged = torch.empty_like(host.data[: len(host_blocks)])
    copier.gather(blocks, staged)
    unstage(staged, host.data, host_blocks)
    for block, host_block in zip(blocks, host_blocks, strict=True):
        on_host[host_block] = before[block]
    assert torch.equal(host.data, on_host)

    arena.data.zero_()
    stage(host.data, host_blocks, staged)
    copier.scatter(staged, blocks)
    expected = torch.zeros_like(before)
    expected[blocks] = before[blocks]
    assert torch.equal(arena.blocks, expected)


@_each_layout
@pytest.mark.parametrize("device", _DEVICES)
def test_more_than_the_staging_memory_holds_at_once(layout, device, monkeypatch):
    arena, host = _arenas(layout, device)
    monkeypatch.setattr(block_mover, "_BUFFER_BYTES", 3 * arena.bytes_per_block)
    mover = make_mover(arena, host, Timer(torch.device(device), lambda: 0.0))
    blocks, before = random.Random(2).sample(range(40), 30), arena.blocks.clone()
    mover.swap_out(list(zip(blocks, range(30), strict=True)))
    arena.data.zero_()
    mover.swap_in(list(zip(range(30), blocks, strict=True)))
    expected = torch.zeros_like(before)
    expected[blocks] = before[blocks]
    assert torch.equal(arena.blocks, expected)


@_each_layout
@pytest.mark.parametrize("device", _DEVICES)
def test_swaps_and_copies_in_a_row_without_a_wait_between_them(layout, device):
    """What a GPU does in two streams is what happens one after the other."""
    arena, host = _arenas(layout, device)
    mover = make_mover(arena, host, Timer(torch.device(device), lambda: 0.0))
    blocks, on_host = arena.blocks.clone().cpu(), host.data.clone()
    rng = random.Random(3)
    for number in range(20):
        out = list(zip(rng.sample(range(40), 10), rng.sample(range(30), 10), strict=True))
        back = list(zip(rng.sample(range(30), 10), rng.sample(range(40), 10), strict=True))
        copies = list(zip(rng.choices(range(40), k=9), rng.sample(range(40), 9), strict=True))
        written = rng.randrange(40)
        mover.swap_out(out)
        mover.swap_in(back)
        mover.copy(copies)
        arena.blocks[written].fill_(number)
        for block, host_block in out:
            on_host[host_block] = blocks[block]
        for host_block, block in back:
            blocks[block] = on_host[host_block]
        for source, destination in copies:
            blocks[destination] = blocks[source]
        blocks[written] = number
    if device == "cuda":
        torch.cuda.synchronize()
    assert torch.equal(arena.blocks.cpu(), blocks)
    assert torch.equal(host.data, on_host)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_span_says_how_long_the_bus_took():
    arena, host = _arenas(_LAYOUTS["blocks inside"], "cuda")
    timer = Timer(torch.device("cuda"), lambda: 0.0)
    mover = make_mover(arena, host, timer)
    for span in (mover.swap_out([(1, 2)]), mover.swap_in([(2, 1)]), mover.copy([(1, 2)])):
        assert timer.seconds(span) > 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_mover_takes_no_more_of_the_gpu_than_it_says():
    layout = BlockLayout(torch.uint8, (2,), (3 << 20,))
    arena = BlockArena(layout, num_blocks=40, block_size=4, device=torch.device("cuda"))
    host = HostArena(arena, 30)
    before = torch.cuda.memory_allocated()
    mover = make_mover(arena, host, Timer(torch.device("cuda"), lambda: 0.0))
    mover.swap_out([(block, block) for block in range(30)])
    torch.cuda.synchronize()
    assert 0 < torch.cuda.memory_allocated() - before <= staging_bytes(arena.bytes_per_block)
