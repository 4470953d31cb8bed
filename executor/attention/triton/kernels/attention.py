"""Attention over block tables, for prefill chunks and decodes alike (Kwon et al., arXiv 2309.06180, section 4.3).

One program computes one tile of queries of one row, with query heads that share a key/value head, over the row's keys
or a split of them (Dao et al., Flash-Decoding), by online softmax (Milakov and Gimelshein, arXiv 1805.02867;
Dao, arXiv 2307.08691). Exponentials and logarithms are to the base 2.
"""

import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)
# Far below any score, and finite: the difference of two maxima is never NaN.
_NO_MAXIMUM = tl.constexpr(-1.0e30)


@triton.jit(do_not_specialize=["num_results", "window"])
def paged_attention(
    queries,
    keys,
    values,
    block_ids,
    tiles,
    slopes,
    output,
    log_sums,
    block_stride: tl.int64,
    query_stride: tl.int64,
    num_results: tl.int32,
    scale: tl.float32,
    soft_cap: tl.float32,
    window: tl.int32,
    TILE_FIELDS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PEELED: tl.constexpr,
    PARTIAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    BIASED: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDENED: tl.constexpr,
):
    """Grid: (tiles * KV_HEADS * ceil(GROUP / HEADS), splits).

    Args:
        queries: [tokens, heads, HEAD_DIM], a token's heads one after the other.
        keys, values: [num_blocks, KV_HEADS, BLOCK_SIZE, HEAD_DIM], blocks `block_stride` apart.
        block_ids: all rows' block tables, int32.
        tiles: [tiles, TILE_FIELDS], int32; see `executor.attention.triton.tiles`.
        slopes: [heads], of the distance that is added to scores.
        output: [results, heads, HEAD_DIM], or [splits, results, heads, HEAD_DIM] in float32.
        log_sums: [splits, results, heads]: log2 of the sum of exp2(score / ln 2); -inf where a split has no keys.
        HEADS: of a group, in one program.
        PEELED: tiles of keys that all queries see go without masks.
        PARTIAL: each split's result, not only a single one's.
        WIDENED: dot products of float32 copies.
    """
    program = tl.program_id(0)
    split = tl.program_id(1)
    HEAD_TILES: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    kv_head = program // HEAD_TILES % KV_HEADS
    tile = tiles + program // (HEAD_TILES * KV_HEADS) * TILE_FIELDS
    table = block_ids + tl.load(tile)
    first_token = tl.load(tile + 1)
    num_queries = tl.load(tile + 2)
    first_position = tl.load(tile + 3)
    low = tl.load(tile + 4)
    least_share = tl.load(tile + 5)

    row = tl.arange(0, BLOCK_M)
    query = row // HEADS
    in_group = program % HEAD_TILES * HEADS + row % HEADS
    head = kv_head * GROUP + in_group
    is_real = (query < num_queries) & (in_group < GROUP)
    position = first_position + query

    high = first_position + num_queries
    if WINDOWED:
        low = tl.maximum(low, first_position - window + 1)
    if PARTIAL:
        share = tl.maximum(tl.cdiv(tl.cdiv(high - low, BLOCK_N), tl.num_programs(1)), least_share) * BLOCK_N
        low += split * share
        high = tl.minimum(high, low + share)
        if low >= high:
            at = _results(tile, query, head, num_results, KV_HEADS * GROUP)
            tl.store(log_sums + at, float("-inf"), mask=is_real)
            return

    dim = tl.arange(0, PADDED_DIM)
    in_head = dim < HEAD_DIM
    q = tl.load(
        queries + ((first_token + query).to(tl.int64) * query_stride + head * HEAD_DIM)[:, None] + dim[None, :],
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
    ids = tl.load(table + tl.minimum(low + column, tl.maximum(last, 0)) // BLOCK_SIZE)
    if PEELED:
        seen_by_all = tl.maximum(tl.minimum(first_position + 1, high) - low, 0) // BLOCK_N * BLOCK_N
        for start in tl.range(low, low + seen_by_all, BLOCK_N):
            next_ids = tl.load(table + tl.minimum(start + BLOCK_N + column, last) // BLOCK_SIZE)
            maximum, total, result = attend_keys(
                q, keys, values, ids, start + column, start + column, position, slope, maximum, total, result,
                block_stride, scale, soft_cap, window,
                HEAD_DIM, PADDED_DIM, BLOCK_SIZE, False, WINDOWED, CAPPED, BIASED, PRECISION, WIDENED,
            )  # fmt: skip
            ids = next_ids
        low += seen_by_all
    for start in tl.range(low, high, BLOCK_N):
        next_ids = tl.load(table + tl.minimum(start + BLOCK_N + column, last) // BLOCK_SIZE)
        maximum, total, result = attend_keys(
            q, keys, values, ids, start + column, tl.minimum(start + column, last), position, slope,
            maximum, total, result, block_stride, scale, soft_cap, window,
            HEAD_DIM, PADDED_DIM, BLOCK_SIZE, True, WINDOWED, CAPPED, BIASED, PRECISION, WIDENED,
        )  # fmt: skip
        ids = next_ids

    # An empty row has no keys: its result is 0.
    has_keys = total > 0.0
    total = tl.where(has_keys, total, 1.0)
    result /= total[:, None]
    at = _results(tile, query, head, num_results, KV_HEADS * GROUP)
    tl.store(
        output + (at * HEAD_DIM)[:, None] + dim[None, :],
        result.to(output.dtype.element_ty),
        mask=is_real[:, None] & in_head[None, :],
    )
    if PARTIAL:
        tl.store(log_sums + at, tl.where(has_keys, maximum + tl.log2(total), float("-inf")), mask=is_real)


@triton.jit
def _results(tile, query, head, num_results, HEADS: tl.constexpr):
    """Where the results of these queries and heads go, counted in heads. Not worth the registers to be kept."""
    row = tl.program_id(1).to(tl.int64) * num_results + tl.load(tile + 6) + query
    return row * HEADS + head


@triton.jit
def attend_keys(
    q,
    keys,
    values,
    ids,
    key,
    read,
    position,
    slope,
    maximum,
    total,
    result,
    block_stride,
    scale,
    soft_cap,
    window,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    MASKED: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    BIASED: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDENED: tl.constexpr,
):
    """Takes one tile of keys into the online softmax.

    Args:
        ids: the block of each key.
        key: positions of the keys.
        read: the same, or another key's where this one does not exist.
    """
    dim = tl.arange(0, PADDED_DIM)
    at = (ids.to(tl.int64) * block_stride + (read % BLOCK_SIZE) * HEAD_DIM)[:, None] + dim[None, :]
    if PADDED_DIM == HEAD_DIM:
        k = tl.load(keys + at)
        v = tl.load(values + at)
    else:
        k = tl.load(keys + at, mask=(dim < HEAD_DIM)[None, :], other=0.0)
        v = tl.load(values + at, mask=(dim < HEAD_DIM)[None, :], other=0.0)
    if WIDENED:
        q = q.to(tl.float32)
    k = k.to(q.dtype)
    v = v.to(q.dtype)

    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if CAPPED:
        # tanh(x) = 1 - 2 / (exp(2 x) + 1), also where the exponential is infinite.
        grown = tl.exp2(scores * (scale / soft_cap * 2.0 * _LOG2_E))
        scores = (1.0 - 2.0 / (grown + 1.0)) * (soft_cap * _LOG2_E)
    else:
        scores *= scale * _LOG2_E
    distance = key[None, :] - position[:, None]
    if BIASED:
        scores += slope[:, None] * distance.to(tl.float32)
    if MASKED:
        if WINDOWED:
            scores = tl.where((distance <= 0) & (distance > -window), scores, float("-inf"))
        else:
            scores = tl.where(distance <= 0, scores, float("-inf"))

    new_maximum = tl.maximum(maximum, tl.max(scores, 1))
    weights = tl.exp2(scores - new_maximum[:, None])
    shrink = tl.exp2(maximum - new_maximum)
    total = total * shrink + tl.sum(weights, 1)
    result = tl.dot(weights.to(v.dtype), v, result * shrink[:, None], input_precision=PRECISION)
    return new_maximum, total, result
