"""New tokens' keys and values, and what a cache holds when they are written."""

from __future__ import annotations

import numpy as np
import torch

from executor.attention.triton.block_cache import BlockCache

FP8 = torch.float8_e4m3fn
_LARGEST = 448.0
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
_CPU = torch.device("cpu")


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """To the bit, NaN included."""
    bits = _BITS[one.itemsize]
    return one.dtype == other.dtype and torch.equal(one.contiguous().view(bits), other.contiguous().view(bits))


def empty_cache(
    dtype: torch.dtype, kv_heads: int, block_size: int, head_dim: int, device: torch.device = _CPU
) -> BlockCache:
    """Six blocks full of NaN."""
    shape = (6, kv_heads, block_size, head_dim)
    keys, values = (torch.full(shape, float("nan"), dtype=torch.float32, device=device).to(dtype) for _ in range(2))
    return BlockCache(keys, values)


def fresh_slots(rng: np.random.Generator, tokens: int, cache: BlockCache, empty: int = 1) -> torch.Tensor:
    """Different ones, the last of all among them, and some -1 anywhere."""
    num_slots = cache.keys.shape[0] * cache.keys.shape[2]
    slots = [num_slots - 1, *rng.choice(num_slots - 1, tokens - 1 - empty, replace=False), *[-1] * empty]
    return torch.tensor(rng.permutation(slots), dtype=torch.int64, device=cache.keys.device)


def fresh_heads(
    dtype: torch.dtype, tokens: int, heads: int, kv_heads: int, head_dim: int, device: torch.device = _CPU
) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values: views of one matrix, as a fused projection gives them."""
    fused = torch.randn(tokens, (heads + 2 * kv_heads) * head_dim, device=device).to(dtype)
    return fused.view(tokens, heads + 2 * kv_heads, head_dim).split((heads, kv_heads, kv_heads), dim=1)


def fresh_angles(tokens: int, dim: int, device: torch.device = _CPU) -> tuple[torch.Tensor, torch.Tensor]:
    angles = 50 * torch.randn(tokens, 1, dim // 2, device=device)
    return angles.cos(), angles.sin()


def written(cache: BlockCache, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> BlockCache:
    """What the cache is to hold afterwards; all else stays what it is."""
    after = BlockCache(cache.keys.clone(), cache.values.clone())
    block_size = cache.keys.shape[2]
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            block, offset = divmod(slot, block_size)
            after.keys[block, :, offset] = _stored(keys[token], cache.keys.dtype)
            after.values[block, :, offset] = _stored(values[token], cache.keys.dtype)
    return after


def check_written(cache: BlockCache, expected: BlockCache) -> None:
    assert same(cache.keys, expected.keys)
    assert same(cache.values, expected.values)


def _stored(entries: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return (entries.clamp(-_LARGEST, _LARGEST) if dtype == FP8 else entries).to(dtype)
