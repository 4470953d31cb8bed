"""Which program of the attention kernel computes what: tables that the host makes, once a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

TILE_FIELDS = 7
"""Columns of a tile, int32:

0. where its row's block table starts in the flat one
1. its first query's token
2. number of queries
3. the first query's position
4. the first key that is attended to
5. least number of key tiles in a split
6. where the first query's result goes
"""

# Fewer keys than these aren't worth a program of their own.
_LEAST_SHARE_KEYS = 256
_MAX_SPLITS = 64
# Results of splits that are kept at a time; each takes heads * head_dim * 4 bytes.
_MAX_PARTS = 4096
# Programs for each one that can run at a time: so many that their unlike lengths even out.
_WAVES = 4


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a step, by column.

    Attributes:
        num_tokens: new tokens of each row.
        context_lengths: tokens up to and including those; 0 for a row that is empty, whose one token is no token.
        table_starts: where each row's block table starts in the flat one.
        token_starts: each row's first new token in the flat token dimension.
    """

    num_tokens: Int64s
    context_lengths: Int64s
    table_starts: Int64s
    token_starts: Int64s

    def only(self, chosen: npt.NDArray[np.bool_]) -> Rows:
        return Rows(
            self.num_tokens[chosen], self.context_lengths[chosen], self.table_starts[chosen], self.token_starts[chosen]
        )


def flat_tables(block_tables: Sequence[Int64s], context_lengths: Int64s, block_size: int) -> tuple[Int32s, Int64s]:
    """The rows' block tables one after the other, as far as there are tokens, and where each starts."""
    counts = -(-context_lengths // block_size)
    used = [table[:count] for table, count in zip(block_tables, counts.tolist(), strict=True)]
    return np.concatenate(used, dtype=np.int32, casting="unsafe"), np.cumsum(counts) - counts


def written_slots(rows: Rows, block_ids: Int32s, block_size: int) -> Int64s:
    """Slot of each new token, [tokens]."""
    row = np.repeat(np.arange(len(rows.num_tokens)), rows.num_tokens)
    positions = np.arange(len(row)) + (rows.context_lengths - rows.num_tokens - _starts(rows.num_tokens))[row]
    blocks = block_ids[rows.table_starts[row] + positions // block_size].astype(np.int64)
    slots: Int64s = blocks * block_size + positions % block_size
    return slots


def query_tiles(rows: Rows, queries_per_tile: int, first_keys: Int64s | None = None) -> Int32s:
    """Cuts each row's new tokens into tiles, those with most keys first: they take longest.

    Results lie in the order of the rows, without gaps.

    Args:
        first_keys: position from which on each row attends; from the first on where None.

    Returns:
        [tiles, TILE_FIELDS], not split.
    """
    counts = -(-rows.num_tokens // queries_per_tile)
    row = np.repeat(np.arange(len(counts)), counts)
    done = (np.arange(len(row)) - _starts(counts)[row]) * queries_per_tile
    columns = (
        rows.table_starts[row],
        rows.token_starts[row] + done,
        np.minimum(rows.num_tokens[row] - done, queries_per_tile),
        (rows.context_lengths - rows.num_tokens)[row] + done,
        np.zeros_like(row) if first_keys is None else first_keys[row],
        np.ones_like(row),
        _starts(rows.num_tokens)[row] + done,
    )
    tiles = np.stack(columns, axis=1).astype(np.int32)
    return tiles[np.argsort(-_num_keys(tiles), kind="stable")]


def result_tokens(rows: Rows) -> Int32s:
    """Token of each result of `query_tiles`, [results]."""
    row = np.repeat(np.arange(len(rows.num_tokens)), rows.num_tokens)
    return (np.arange(len(row)) + (rows.token_starts - _starts(rows.num_tokens))[row]).astype(np.int32)


def split_keys(tiles: Int32s, programs_per_tile: int, keys_per_tile: int, num_running: int, most: int) -> int:
    """Sets how finely the tiles' keys are split, so that programs are of like length and keep all multiprocessors busy.

    Args:
        tiles: as of `query_tiles`; their least share is set.
        programs_per_tile: without splits.
        keys_per_tile: keys that a program takes in at once.
        num_running: programs that run at a time.
        most: splits that there may be.

    Returns:
        Number of splits, 1 where it isn't worth it.
    """
    key_tiles = -(-_num_keys(tiles) // keys_per_tile)
    longest, work = int(key_tiles.max()), int(key_tiles.sum()) * programs_per_tile
    least = max(1, _LEAST_SHARE_KEYS // keys_per_tile)
    share = max(least, -(-work // (_WAVES * num_running)), -(-longest // most))
    # Parts of more than half of the longest row aren't worth merging.
    if 2 * share > longest:
        share = max(1, longest)
    tiles[:, 5] = share
    return max(1, -(-longest // share))


def max_splits(num_results: int) -> int:
    """How many splits there may be, for their results to take only so much memory."""
    return max(1, min(_MAX_SPLITS, _MAX_PARTS // num_results))


def max_decode_splits(num_rows: int, max_context: int, programs_per_row: int, num_running: int) -> int:
    """Splits that suffice for up to `num_rows` decodes of up to `max_context` tokens."""
    useful = -(-_WAVES * num_running // (num_rows * programs_per_row))
    return max(1, min(useful, max_splits(num_rows), -(-max_context // _LEAST_SHARE_KEYS)))


def _starts(counts: Int64s) -> Int64s:
    starts: Int64s = np.cumsum(counts) - counts
    return starts


def _num_keys(tiles: Int32s) -> Int32s:
    counts: Int32s = np.maximum(tiles[:, 3] + tiles[:, 2] - tiles[:, 4], 0)
    return counts
