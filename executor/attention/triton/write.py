"""New tokens' keys and values go into their blocks: one launch a layer, rotary embedding included."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable

import torch
import triton

from executor.attention.triton.block_cache import BlockCache
from executor.attention.triton.dtypes import TRITON_NAMES
from executor.attention.triton.kernel_spec import KernelSpec
from executor.attention.triton.kernels.write import rotate_and_write_kernel, write_kernel

_PROGRAM_ENTRIES = 1024
_NUM_WARPS = 4

_FP8 = torch.float8_e4m3fn
_CACHED = tuple((dtype, cached) for dtype in (torch.float16, torch.bfloat16, torch.float32) for cached in (dtype, _FP8))
_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 256)
# Where only a part of a head is turned: (size of the head, of that part).
_PARTIAL = ((64, 16), (64, 32), (80, 20), (80, 32), (96, 24), (128, 32), (128, 64), (256, 64))


def write_kv(cache: BlockCache, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
    """Stores keys and values in their slots.

    Args:
        keys, values: [tokens, kv_heads, head_dim]; a token's heads lie one after the other, tokens may lie apart. In
            the cache's type, or any that is rounded to its 8 bits; numbers beyond 448 become 448.
        slots: [tokens], int64; -1: written nowhere.

    Raises:
        ValueError: a shape or a type doesn't fit.
    """
    tokens, kv_heads, head_dim = keys.shape
    _check_cache(cache, keys, values, slots)
    spec = _write_spec(keys.dtype, cache.keys.dtype, head_dim)
    spec.launch(
        (tokens, triton.cdiv(kv_heads, spec.constants["HEADS"])),
        keys,
        values,
        slots,
        cache.keys,
        cache.values,
        kv_heads,
        keys.stride(0),
        values.stride(0),
        cache.keys.stride(0),
        _slot_bits(cache),
    )


def rotate_and_write(
    cache: BlockCache,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    cosines: torch.Tensor,
    sines: torch.Tensor,
    slots: torch.Tensor,
) -> torch.Tensor:
    """Turns queries and keys as `executor.rotary.rotate` does, to the same bits; stores the keys and the values.

    Args:
        queries: [tokens, heads, head_dim], as the keys.
        cosines, sines: [tokens, 1, dim / 2], float32.
        keys, values, slots: as of `write_kv`.

    Returns:
        The turned queries, contiguous.

    Raises:
        ValueError: a shape or a type doesn't fit.
    """
    tokens, kv_heads, head_dim = keys.shape
    heads = queries.shape[1]
    _check_cache(cache, keys, values, slots)
    _check_heads("queries", queries, (tokens, heads, head_dim), keys.dtype)
    _check_angles(cosines, sines, tokens, head_dim)
    turned = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
    spec = _rotate_spec(keys.dtype, cache.keys.dtype, head_dim, 2 * cosines.shape[-1])
    tile = spec.constants["HEADS"]
    spec.launch(
        (tokens, triton.cdiv(heads, tile) + triton.cdiv(kv_heads, tile)),
        queries,
        keys,
        values,
        cosines,
        sines,
        slots,
        turned,
        cache.keys,
        cache.values,
        heads,
        kv_heads,
        queries.stride(0),
        keys.stride(0),
        values.stride(0),
        cache.keys.stride(0),
        _slot_bits(cache),
    )
    return turned


def specs(
    cached: Iterable[tuple[torch.dtype, torch.dtype]] = _CACHED,
    head_dims: Iterable[int] = _HEAD_DIMS,
    partial: Iterable[tuple[int, int]] = _PARTIAL,
) -> list[KernelSpec]:
    """Every form that an executor can pick.

    Args:
        cached: types of keys and of the cache.
        head_dims: sizes of heads that are turned whole or not at all.
        partial: sizes of heads, and of the part that is turned.
    """
    rotated = [*((size, size) for size in head_dims), *partial]
    return [
        *itertools.starmap(_write_spec, ((*types, size) for types in cached for size in head_dims)),
        *itertools.starmap(_rotate_spec, ((*types, *sizes) for types in cached for sizes in rotated)),
    ]


@functools.cache
def _write_spec(dtype: torch.dtype, cached: torch.dtype, head_dim: int) -> KernelSpec:
    new, stored = f"*{TRITON_NAMES[dtype]}", f"*{TRITON_NAMES[cached]}"
    return KernelSpec(
        name=f"write {new[1:]} to {stored[1:]} d{head_dim}",
        kernel=write_kernel,
        signature={
            "keys": new,
            "values": new,
            "slots": "*i64",
            "key_cache": stored,
            "value_cache": stored,
            "num_kv_heads": "i32",
            "key_stride": "i32",
            "value_stride": "i32",
            "block_stride": "i32",
            "slot_bits": "i32",
        },
        constants={"HEAD_DIM": head_dim, "HEADS": _heads_per_program(head_dim)},
        aligned=frozenset(
            ("keys", "values", "slots", "key_cache", "value_cache", "key_stride", "value_stride", "block_stride")
        ),
        num_warps=_NUM_WARPS,
        num_stages=1,
    )


@functools.cache
def _rotate_spec(dtype: torch.dtype, cached: torch.dtype, head_dim: int, dim: int) -> KernelSpec:
    new, stored = f"*{TRITON_NAMES[dtype]}", f"*{TRITON_NAMES[cached]}"
    pointers = {
        "queries": new,
        "keys": new,
        "values": new,
        "cosines": "*fp32",
        "sines": "*fp32",
        "slots": "*i64",
        "turned": new,
        "key_cache": stored,
        "value_cache": stored,
    }
    strides = ("query_stride", "key_stride", "value_stride", "block_stride")
    return KernelSpec(
        name=f"rotate and write {new[1:]} to {stored[1:]} d{head_dim} r{dim}",
        kernel=rotate_and_write_kernel,
        signature=pointers | dict.fromkeys(("num_heads", "num_kv_heads", *strides, "slot_bits"), "i32"),
        constants={"HEAD_DIM": head_dim, "HALF": dim // 2, "HEADS": _heads_per_program(head_dim)},
        aligned=frozenset((*pointers, *strides)),
        num_warps=_NUM_WARPS,
        num_stages=1,
        # Products are rounded before they are added, as in torch.
        fp_fusion=False,
    )


def _heads_per_program(head_dim: int) -> int:
    return max(1, _PROGRAM_ENTRIES // int(triton.next_power_of_2(head_dim)))


def _slot_bits(cache: BlockCache) -> int:
    return int(cache.keys.shape[2]).bit_length() - 1


def _check_cache(cache: BlockCache, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
    tokens, kv_heads, head_dim = keys.shape
    _check_heads("keys", keys, (tokens, kv_heads, head_dim), keys.dtype)
    _check_heads("values", values, (tokens, kv_heads, head_dim), keys.dtype)
    if slots.shape != (tokens,) or slots.dtype != torch.int64 or not slots.is_contiguous():
        raise ValueError(f"slots must be {tokens} contiguous int64, not {tuple(slots.shape)} of {slots.dtype}")
    block_size = cache.keys.shape[2]
    if block_size & (block_size - 1):
        raise ValueError(f"block_size must be a power of two, not {block_size}")
    for name, blocks in (("keys", cache.keys), ("values", cache.values)):
        if blocks.shape[1:] != (kv_heads, block_size, head_dim) or blocks.dtype not in (keys.dtype, _FP8):
            raise ValueError(
                f"the cache's {name}, blocks of {tuple(blocks.shape[1:])} in {blocks.dtype}, "
                f"can't hold {kv_heads} heads of {head_dim} in {keys.dtype}"
            )
        if not blocks[0].is_contiguous() or blocks.stride() != cache.keys.stride():
            raise ValueError(f"a block of the cache's {name} must be contiguous, and keys and values laid out alike")


def _check_heads(name: str, heads: torch.Tensor, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    if heads.shape != shape or heads.dtype != dtype:
        raise ValueError(f"{name} must be {shape} of {dtype}, not {tuple(heads.shape)} of {heads.dtype}")
    if heads.stride(2) != 1 or (shape[1] > 1 and heads.stride(1) != shape[2]):
        raise ValueError(f"the heads of a token of {name} must lie one after the other, not {heads.stride()} apart")


def _check_angles(cosines: torch.Tensor, sines: torch.Tensor, tokens: int, head_dim: int) -> None:
    for name, angles in (("cosines", cosines), ("sines", sines)):
        fits = angles.shape == (tokens, 1, cosines.shape[-1]) and 2 <= 2 * angles.shape[-1] <= head_dim
        if not fits or angles.dtype != torch.float32 or not angles.is_contiguous():
            raise ValueError(
                f"{name} must be {tokens} x 1 x at most {head_dim // 2}, float32 and contiguous, "
                f"not {tuple(angles.shape)} of {angles.dtype}"
            )
