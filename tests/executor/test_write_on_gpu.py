"""Rotary embedding and the write into blocks as a GPU rounds: to the bit as torch does, one after the other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from executor.rotary import rotate
from tests.executor.triton.written import (
    FP8,
    check_written,
    empty_cache,
    fresh_angles,
    fresh_heads,
    fresh_slots,
    same,
    written,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

_CUDA = torch.device("cuda")
_DTYPES = [torch.float16, torch.bfloat16, torch.float32]
# Heads of a token, those of keys, size, turned part, block size.
_SHAPES = [(32, 8, 128, 128, 16), (9, 3, 64, 64, 8), (8, 1, 80, 32, 32), (5, 5, 256, 64, 128), (3, 1, 40, 20, 1)]


def _rng():
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    torch.manual_seed(seed)
    return np.random.default_rng(seed)


def _cached_as(dtype, in_8_bits):
    capability = torch.cuda.get_device_capability()
    if in_8_bits and capability < (8, 9):
        pytest.skip("this GPU has no numbers of 8 bits")
    if in_8_bits and capability == (8, 9) and dtype == torch.float32:
        pytest.skip("for this GPU Triton cuts float32 down to float16 before it rounds to 8 bits")
    return FP8 if in_8_bits else dtype


@pytest.mark.parametrize("in_8_bits", [False, True])
@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "dim", "block_size"), _SHAPES)
def test_rotated_and_written(dtype, in_8_bits, heads, kv_heads, head_dim, dim, block_size):
    from executor.attention.triton.write import rotate_and_write

    rng = _rng()
    cache = empty_cache(_cached_as(dtype, in_8_bits), kv_heads, block_size, head_dim, _CUDA)
    tokens = min(40, 6 * block_size)
    queries, keys, values = fresh_heads(dtype, tokens, heads, kv_heads, head_dim, _CUDA)
    values.mul_(300)  # some are beyond what 8 bits hold
    angles, slots = fresh_angles(tokens, dim, _CUDA), fresh_slots(rng, tokens, cache)
    expected = written(cache, rotate(keys, *angles), values, slots)
    assert same(rotate_and_write(cache, queries, keys, values, *angles, slots), rotate(queries, *angles))
    check_written(cache, expected)


@pytest.mark.parametrize("in_8_bits", [False, True])
@pytest.mark.parametrize("dtype", _DTYPES)
def test_written(dtype, in_8_bits):
    from executor.attention.triton.write import write_kv

    rng = _rng()
    cache = empty_cache(_cached_as(dtype, in_8_bits), 3, 16, 96, _CUDA)
    _, keys, values = fresh_heads(dtype, 40, 2, 3, 96, _CUDA)
    values.mul_(300)
    slots = fresh_slots(rng, 40, cache, empty=5)
    expected = written(cache, keys, values, slots)
    write_kv(cache, keys, values, slots)
    check_written(cache, expected)
