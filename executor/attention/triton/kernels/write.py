"""New tokens' keys and values go into their blocks, turned by rotary embedding or as they are.

A program has one token and some heads, of the queries or of the keys and values.
"""

import triton
import triton.language as tl

# Counts: that one of them is 1, or a multiple of 16, makes no other kernel.
_COUNTS = ["num_heads", "num_kv_heads", "slot_bits"]


@triton.jit(do_not_specialize=_COUNTS[1:])
def write_kernel(
    keys,
    values,
    slots,
    key_cache,
    value_cache,
    num_kv_heads,
    key_stride,
    value_stride,
    block_stride,
    slot_bits,
    HEAD_DIM: tl.constexpr,
    HEADS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    to, there = _slot(slots, token, heads, num_kv_heads, block_stride, slot_bits, HEAD_DIM)
    _copy_entries(keys + token * key_stride, key_cache + to, heads, there, 0, HEAD_DIM, HEAD_DIM, 1 << slot_bits)
    _copy_entries(values + token * value_stride, value_cache + to, heads, there, 0, HEAD_DIM, HEAD_DIM, 1 << slot_bits)


@triton.jit(do_not_specialize=_COUNTS)
def rotate_and_write_kernel(
    queries,
    keys,
    values,
    cosines,
    sines,
    slots,
    turned,
    key_cache,
    value_cache,
    num_heads,
    num_kv_heads,
    query_stride,
    key_stride,
    value_stride,
    block_stride,
    slot_bits,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    query_tiles = tl.cdiv(num_heads, HEADS)
    tile = tl.program_id(1)
    if tile < query_tiles:
        heads = tile * HEADS + tl.arange(0, HEADS)
        source = queries + token * query_stride
        target = turned + token * num_heads * HEAD_DIM
        there = heads < num_heads
        _turn_entries(source, target, cosines, sines, token, heads, there, HEAD_DIM, HALF, 1)
        _copy_entries(source, target, heads, there, 2 * HALF, HEAD_DIM, HEAD_DIM, 1)
    else:
        heads = (tile - query_tiles) * HEADS + tl.arange(0, HEADS)
        to, there = _slot(slots, token, heads, num_kv_heads, block_stride, slot_bits, HEAD_DIM)
        apart = 1 << slot_bits
        source = keys + token * key_stride
        _turn_entries(source, key_cache + to, cosines, sines, token, heads, there, HEAD_DIM, HALF, apart)
        _copy_entries(source, key_cache + to, heads, there, 2 * HALF, HEAD_DIM, HEAD_DIM, apart)
        _copy_entries(values + token * value_stride, value_cache + to, heads, there, 0, HEAD_DIM, HEAD_DIM, apart)


@triton.jit
def _slot(slots, token, heads, num_kv_heads, block_stride, slot_bits, HEAD_DIM: tl.constexpr):
    """Where the first head of a token's slot lies, and which heads are to be written: none where the slot is -1."""
    slot = tl.load(slots + token)
    written = slot >= 0
    slot = tl.where(written, slot, 0)
    block = slot >> slot_bits
    offset = slot - (block << slot_bits)
    return block * block_stride + offset * HEAD_DIM, (heads < num_kv_heads) & written


@triton.jit
def _copy_entries(source, target, heads, there, FIRST: tl.constexpr, END: tl.constexpr, HEAD_DIM: tl.constexpr, apart):
    """Entries FIRST to END of each head; the target's heads are `apart` times as far from one another."""
    if FIRST < END:
        entries = FIRST + tl.arange(0, triton.next_power_of_2(END - FIRST))
        mask = there[:, None] & (entries < END)[None, :]
        read = tl.load(source + heads[:, None] * HEAD_DIM + entries[None, :], mask=mask)
        to = target + heads[:, None] * apart * HEAD_DIM + entries[None, :]
        tl.store(to, _converted(read, target.dtype.element_ty), mask=mask)


@triton.jit
def _turn_entries(
    source, target, cosines, sines, token, heads, there, HEAD_DIM: tl.constexpr, HALF: tl.constexpr, apart
):
    """Entry i with entry i + HALF of each head, in float32, rounded to the source's type and then to the target's."""
    pairs = tl.arange(0, triton.next_power_of_2(HALF))
    cosine = tl.load(cosines + token * HALF + pairs, mask=pairs < HALF)[None, :]
    sine = tl.load(sines + token * HALF + pairs, mask=pairs < HALF)[None, :]
    mask = there[:, None] & (pairs < HALF)[None, :]
    read = source + heads[:, None] * HEAD_DIM + pairs[None, :]
    first = tl.load(read, mask=mask).to(tl.float32)
    second = tl.load(read + HALF, mask=mask).to(tl.float32)
    kind = source.dtype.element_ty
    to = target + heads[:, None] * apart * HEAD_DIM + pairs[None, :]
    stored = target.dtype.element_ty
    tl.store(to, _converted((first * cosine - second * sine).to(kind), stored), mask=mask)
    tl.store(to + HALF, _converted((second * cosine + first * sine).to(kind), stored), mask=mask)


@triton.jit
def _converted(entries, kind: tl.constexpr):
    """To 8 bits, what is too large becomes the largest number there is: without that it would become NaN."""
    if kind == tl.float8e4nv:
        entries = tl.clamp(entries.to(tl.float32), -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
    return entries.to(kind)
