from __future__ import annotations

import pytest
import torch

from executor.attention import ReferenceAttention
from executor.families.llama import describe
from executor.memory.arena import BlockArena, BlockLayout

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


_REFERENCE = ReferenceAttention()
# With the blocks as the first, an inner and the last dimension.
_LAYOUTS = {
    "blocks outside": BlockLayout(torch.float32, (), (3, 10)),
    "blocks inside": _REFERENCE.block_layout(_MODEL, 4, torch.float32),
    "numbers": BlockLayout(torch.uint8, (5,), ()),
}


def _arena(layout=_LAYOUTS["blocks inside"], num_blocks=6, **options):
    return BlockArena(layout, num_blocks=num_blocks, block_size=4, device=torch.device("cpu"), **options)


@pytest.mark.parametrize("layout", _LAYOUTS.values(), ids=_LAYOUTS.keys())
def test_bytes_per_block_is_what_a_block_takes(layout):
    arena = _arena(layout)
    assert arena.bytes_per_block == arena.data.nbytes // 6 == arena.blocks[3].nbytes


def test_a_block_holds_keys_and_values_of_all_layers():
    numbers = 2 * 3 * 4 * 2 * 8
    assert _REFERENCE.block_layout(_MODEL, 4, torch.float32).bytes_per_block == 4 * numbers
    assert _REFERENCE.block_layout(_MODEL, 4, torch.bfloat16).bytes_per_block == 2 * numbers


def test_slots_and_blocks_are_the_same_memory():
    arena = _arena()
    caches = _REFERENCE.layer_caches(arena)
    caches[1].keys[2 * 4 + 3] = 5
    caches[2].values[0] = 7
    assert (arena.blocks[2, 1, 0, 3] == 5).all()
    assert (arena.blocks[0, 2, 1, 0] == 7).all()


def test_lies_in_memory_that_is_given():
    memory = torch.zeros(7 * _arena().bytes_per_block, dtype=torch.uint8)
    arena = _arena(memory=memory)
    arena.data.fill_(1)
    assert arena.data.data_ptr() == memory.data_ptr()
    assert memory.view(torch.float32).sum() == arena.data.numel()


def test_an_empty_arena_is_refused():
    with pytest.raises(ValueError, match="num_blocks"):
        _arena(num_blocks=0)
