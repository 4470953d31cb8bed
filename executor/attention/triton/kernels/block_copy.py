"""Blocks are copied as words, many in a launch: within an arena, out of it, or into it."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["tiles"])
def copy_blocks_kernel(
    source,
    target,
    pairs,
    tiles,
    piece: tl.int64,
    source_block_stride: tl.int64,
    source_piece_stride: tl.int64,
    target_block_stride: tl.int64,
    target_piece_stride: tl.int64,
    TILE: tl.constexpr,
):
    """A block lies in pieces of so many words. Program (i * tiles + j, k): tile j of piece k of pair i.

    A pair is two block numbers, of the source and of the target.
    """
    pair = tl.program_id(0) // tiles
    words = (tl.program_id(0) % tiles) * TILE + tl.arange(0, TILE)
    number = tl.program_id(1).to(tl.int64)
    source_block = tl.load(pairs + 2 * pair)
    target_block = tl.load(pairs + 2 * pair + 1)
    source += source_block * source_block_stride + number * source_piece_stride
    target += target_block * target_block_stride + number * target_piece_stride
    tl.store(target + words, tl.load(source + words, mask=words < piece), mask=words < piece)
