"""The results of attention over parts of a row's keys, merged by their weights (Dao et al., Flash-Decoding)."""

import triton
import triton.language as tl

_NO_MAXIMUM = tl.constexpr(-1.0e30)


@triton.jit(do_not_specialize=["num_parts", "num_results"])
def merge_parts(
    parts,
    log_sums,
    tokens,
    output,
    num_parts: tl.int32,
    num_results: tl.int32,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Grid: (results * HEADS,).

    Args:
        parts: [num_parts, results, HEADS, HEAD_DIM], float32.
        log_sums: [num_parts, results, HEADS], float32, to the base 2. Where it is -inf the part is not read.
        tokens: [results], int32: the token of each result.
        output: [tokens, HEADS, HEAD_DIM]; 0 where all parts are empty.
    """
    program = tl.program_id(0)
    token = tl.load(tokens + program // HEADS)
    dim = tl.arange(0, PADDED_DIM)
    in_head = dim < HEAD_DIM
    maximum = tl.full((), _NO_MAXIMUM, tl.float32)
    total = tl.zeros((), tl.float32)
    result = tl.zeros((PADDED_DIM,), tl.float32)
    for start in range(0, num_parts, CHUNK):
        part = start + tl.arange(0, CHUNK)
        at = part.to(tl.int64) * num_results * HEADS + program
        log_sum = tl.load(log_sums + at, mask=part < num_parts, other=float("-inf"))
        is_there = log_sum > float("-inf")
        chunk = tl.load(
            parts + (at * HEAD_DIM)[:, None] + dim[None, :], mask=is_there[:, None] & in_head[None, :], other=0.0
        )
        new_maximum = tl.maximum(maximum, tl.max(log_sum, 0))
        weights = tl.exp2(log_sum - new_maximum)
        shrink = tl.exp2(maximum - new_maximum)
        total = total * shrink + tl.sum(weights, 0)
        result = result * shrink + tl.sum(chunk * weights[:, None], 0)
        maximum = new_maximum
    result /= tl.where(total > 0.0, total, 1.0)
    at = (token.to(tl.int64) * HEADS + program % HEADS) * HEAD_DIM
    tl.store(output + at + dim, result.to(output.dtype.element_ty), mask=in_head)
