"""Attention of many decodes over the blocks that all their block tables begin with, which are read once for all.

As in Hydragen (Juravsky et al., arXiv 2402.05099) and ChunkAttention (Ye et al., arXiv 2402.15220); what it writes is
merged with each row's attention over its own keys by their weights.
"""

import triton
import triton.language as tl

from executor.attention.triton.kernels.attention import attend_keys

_LOG2_E = tl.constexpr(1.4426950408889634)
_NO_MAXIMUM = tl.constexpr(-1.0e30)
_NO_POSITION = tl.constexpr(0x3FFFFFFF)


@triton.jit(do_not_specialize=["num_results", "window"])
def shared_prefix_attention(
    queries,
    keys,
    values,
    block_ids,
    items,
    slopes,
    parts,
    log_sums,
    block_stride: tl.int64,
    query_stride: tl.int64,
    num_results: tl.int32,
    scale: tl.float32,
    soft_cap: tl.float32,
    window: tl.int32,
    ITEM_FIELDS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    BIASED: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDENED: tl.constexpr,
):
    """Grid: (items, KV_HEADS * ceil(GROUP / HEADS)).

    A tile holds an item's rows with HEADS of the query heads that share a key/value head. There is no causal mask:
    all of a prefix comes before every query. An item without keys, such as one not in use, is done at once.

    Args:
        queries: [tokens, heads, HEAD_DIM], a token's heads one after the other.
        keys, values: [num_blocks, KV_HEADS, BLOCK_SIZE, HEAD_DIM], blocks `block_stride` apart.
        block_ids: all rows' block tables, int32.
        items: [items, ITEM_FIELDS], int32; see `executor.attention.triton.prefix_work`.
        slopes: [heads], of the distance that is added to scores.
        parts: [number of parts, results, heads, HEAD_DIM], float32.
        log_sums: [number of parts, results, heads], float32, as `paged_attention` writes them.
        WIDENED: dot products of float32 copies.
    """
    item = items + tl.program_id(0) * ITEM_FIELDS
    low = tl.load(item)
    high = tl.load(item + 1)
    if low >= high:
        return
    table = block_ids + tl.load(item + 2)
    part = tl.load(item + 3)

    HEAD_TILES: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    kv_head = tl.program_id(1) // HEAD_TILES
    lane = tl.arange(0, BLOCK_M)
    row = lane // HEADS
    in_group = tl.program_id(1) % HEAD_TILES * HEADS + lane % HEADS
    token = tl.load(item + 4 + row, mask=row < TILE_ROWS, other=-1)
    is_real = (token >= 0) & (in_group < GROUP)
    head = kv_head * GROUP + in_group
    position = tl.load(item + 4 + TILE_ROWS + row, mask=is_real, other=_NO_POSITION)
    place = tl.load(item + 4 + 2 * TILE_ROWS + row, mask=is_real, other=0)
    if WINDOWED:
        low = tl.maximum(low, tl.min(position, 0) - window + 1)

    dim = tl.arange(0, PADDED_DIM)
    in_head = dim < HEAD_DIM
    q = tl.load(
        queries + (token.to(tl.int64) * query_stride + head * HEAD_DIM)[:, None] + dim[None, :],
        mask=is_real[:, None] & in_head[None, :],
        other=0.0,
    )
    slope = tl.load(slopes + head, mask=is_real, other=0.0) * _LOG2_E if BIASED else 0.0

    maximum = tl.full((BLOCK_M,), _NO_MAXIMUM, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    result = tl.zeros((BLOCK_M, PADDED_DIM), tl.float32)

    keys += kv_head * (BLOCK_SIZE * HEAD_DIM)
    values += kv_head * (BLOCK_SIZE * HEAD_DIM)
    column = tl.arange(0, BLOCK_N)
    # What lies past the last key is never read: the last key is read again there, and masked.
    last = high - 1
    ids = tl.load(table + tl.minimum(low + column, last) // BLOCK_SIZE)
    for start in tl.range(low, high, BLOCK_N):
        next_ids = tl.load(table + tl.minimum(start + BLOCK_N + column, last) // BLOCK_SIZE)
        key = start + column
        maximum, total, result = attend_keys(
            q, keys, values, ids, tl.where(key < high, key, _NO_POSITION + 1), tl.minimum(key, last), position, slope,
            maximum, total, result, block_stride, scale, soft_cap, window,
            HEAD_DIM, PADDED_DIM, BLOCK_SIZE, True, WINDOWED, CAPPED, BIASED, PRECISION, WIDENED,
        )  # fmt: skip
        ids = next_ids

    # A row whose window begins after the part's keys has none of them: its result is 0.
    result /= tl.where(total > 0.0, total, 1.0)[:, None]
    at = (part.to(tl.int64) * num_results + place) * (KV_HEADS * GROUP) + head
    tl.store(parts + (at * HEAD_DIM)[:, None] + dim[None, :], result, mask=is_real[:, None] & in_head[None, :])
    tl.store(log_sums + at, tl.where(total > 0.0, maximum + tl.log2(total), float("-inf")), mask=is_real)
