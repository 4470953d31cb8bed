from __future__ import annotations

import pytest
import torch

from executor.arena import BlockArena, bytes_per_block
from executor.families.llama import describe

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


def _arena(num_blocks=6, block_size=4):
    return BlockArena(
        _MODEL, num_blocks=num_blocks, block_size=block_size, dtype=torch.float32, device=torch.device("cpu")
    )


def test_bytes_per_block_is_what_a_block_takes():
    arena = _arena()
    assert arena.bytes_per_block == arena.data.nbytes // 6
    assert bytes_per_block(_MODEL, 4, torch.bfloat16) == arena.bytes_per_block // 2


def test_slots_and_blocks_are_the_same_memory():
    arena = _arena()
    arena.layers[1].keys[2 * 4 + 3] = 5
    arena.layers[2].values[0] = 7
    assert (arena.data[1, 0, 2, 3] == 5).all()
    assert (arena.data[2, 1, 0, 0] == 7).all()


def _numbered():
    arena = _arena()
    arena.data[:] = torch.arange(6.0).view(1, 1, 6, 1, 1, 1)
    return arena


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
@pytest.mark.parametrize("copy", [BlockArena.copy_blocks, BlockArena.copy_indexed])
def test_copies_act_one_after_another_in_all_layers(pairs, expected, copy):
    arena = _numbered()
    copy(arena, pairs)
    assert (arena.data == torch.tensor(expected, dtype=torch.float32).view(1, 1, 6, 1, 1, 1)).all()


def test_an_empty_arena_is_refused():
    with pytest.raises(ValueError, match="num_blocks"):
        _arena(num_blocks=0)
