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
    _check_written(cache, keys, values, slots)
    spec = _write_spec(keys.dtype, cache.keys.dtype, head_dim)
    spec.launch(
        (tokens, _programs(kv_heads, spec)),
        keys,
        values,
        slots,
        cache.keys,
        cache.values,
        kv_heads,
        keys.stride(0),
        values.stride(0),
        cache.keys.stride(0),
        cache.slot_bits,
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
    """Turns queries and keys, to the bits of `executor.rotary.rotate`; stores the keys and the values.

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
    _check_written(cache, keys, values, slots)
    _check_heads("queries", queries, (tokens, heads, head_dim), keys.dtype)
    _check_angles(cosines, sines, tokens, head_dim)
    turned = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
    spec = _rotate_spec(keys.dtype, cache.keys.dtype, head_dim, 2 * cosines.shape[-1])
    spec.launch(
        (tokens, _programs(heads, spec) + _programs(kv_heads, spec)),
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
        cache.slot_bits,
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


def _programs(num_heads: int, spec: KernelSpec) -> int:
    """Programs for a token's heads."""
    # triton.cdiv would take 5 us on the host.
    return int(-(-num_heads // spec.constants["HEADS"]))


def _check_written(cache: BlockCache, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
    shape, dtype, cached = keys.shape, keys.dtype, cache.keys
    tokens, kv_heads, head_dim = shape
    _check_heads("keys", keys, shape, dtype)
    _check_heads("values", values, shape, dtype)
    if slots.shape != (tokens,) or slots.dtype != torch.int64 or not slots.is_contiguous():
        raise ValueError(f"slots must be {tokens} contiguous int64, not {tuple(slots.shape)} of {slots.dtype}")
    if cached.shape[1::2] != (kv_heads, head_dim) or (cached.dtype != dtype and cached.dtype != _FP8):
        raise ValueError(
            f"a cache of blocks of {tuple(cached.shape[1:])} in {cached.dtype} "
            f"can't hold {kv_heads} heads of {head_dim} in {dtype}"
        )


def _check_heads(name: str, heads: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if heads.shape != shape or heads.dtype != dtype:
        raise ValueError(f"{name} must be {tuple(shape)} of {dtype}, not {tuple(heads.shape)} of {heads.dtype}")
    _, between_heads, between_entries = heads.stride()
    if between_entries != 1 or (between_heads != shape[2] and shape[1] > 1):
        raise ValueError(f"the heads of a token of {name} must lie one after the other, not {heads.stride()} apart")


def _check_angles(cosines: torch.Tensor, sines: torch.Tensor, tokens: int, head_dim: int) -> None:
    half = cosines.shape[-1]
    for name, angles in (("cosines", cosines), ("sines", sines)):
        fits = angles.shape == (tokens, 1, half) and 0 < 2 * half <= head_dim
        if not fits or angles.dtype != torch.float32 or not angles.is_contiguous():
            raise ValueError(
                f"{name} must be {tokens} x 1 x at most {head_dim // 2}, float32 and contiguous, "
                f"not {tuple(angles.shape)} of {angles.dtype}"
            )
