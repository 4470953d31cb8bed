"""The shared-prefix kernel's work as a table of fixed size: which rows read which part of which prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from executor.attention.triton.prefix_groups import PrefixGroup, prefix_groups
from executor.attention.triton.tiles import Int32s, Int64s, Rows, max_splits

# Rows that a tile has room for. So what they share is read once for up to 16 of them, which leaves little to save.
TILE_ROWS = 16

ITEM_FIELDS = 4 + 3 * TILE_ROWS
"""Columns of an item, int32:

0. its first key's position
1. the position after its last key's; not above the first key's where the item isn't in use
2. where the block table that names the keys' blocks starts in the flat one
3. which of its rows' results it computes
4. each row's token, -1 where there are fewer rows
4 + TILE_ROWS. each row's position
4 + 2 * TILE_ROWS. where each row's result goes
"""

# A program reads at least so many tokens, a multiple of every tile of keys: with fewer, starting it and merging its
# result weigh more than what it reads.
_LEAST_PART = 256

# Parts that one prefix may be cut into, whatever else is in the batch: so a small group that is alone in a large batch
# still keeps more than a few multiprocessors busy.
_LEAST_MAX_PARTS = 8

# What a launch costs, in tokens that an H100 could read meanwhile: it takes about 3 us to start and to drain, in which
# 3.35 TB/s are 2,500 tokens of 4 KiB (keys and values of 8 heads of 128, bfloat16).
LAUNCH_TOKENS = 2500


def saved_tokens(num_rows: int, num_tokens: int) -> int:
    """What it is worth that so many rows read so many tokens together, in tokens whose keys and values aren't read.

    A tile of rows reads them once instead of each row for itself. That counts half: reading the same again within one
    launch is mostly a hit in the L2 cache, which on an A100 or H100 has two to three times the memory's bandwidth.
    Against it, each row's result passes memory in two partial results more, of what is shared and of the rest, in
    float32, each written and read: for a query head and an element 16 bytes, where a token's bfloat16 key and value
    have 4 for a key/value head and an element. With 8 query heads a key/value head that is worth 32 tokens.
    """
    reads = -(-num_rows // TILE_ROWS)
    return (num_rows - reads) * num_tokens // 2 - 32 * num_rows


def worthwhile_groups(rows: Rows, block_ids: Int32s, block_size: int) -> list[PrefixGroup]:
    """The rows that had better read together what they share; none where that saves less than a launch costs.

    Args:
        rows: of one new token each. (A chunk of a prompt reads its keys for many queries anyway.)
    """

    def saved(num_rows: int, num_blocks: int) -> int:
        return saved_tokens(num_rows, num_blocks * block_size)

    full_blocks = np.maximum(rows.context_lengths - 1, 0) // block_size
    groups = prefix_groups(block_ids, rows.table_starts, full_blocks, saved)
    total = sum(saved(len(group.rows), group.num_blocks) for group in groups)
    return groups if total >= LAUNCH_TOKENS else []


@dataclass(frozen=True, slots=True)
class WorkSize:
    """How much work there may be; the same for every step of a plan that a CUDA graph holds.

    Attributes:
        max_items: tiles of rows times parts of their prefix, at most.
        max_parts: parts that one prefix is cut into, at most.
    """

    max_items: int
    max_parts: int

    @classmethod
    def of(cls, num_rows: int, wanted_items: int) -> WorkSize:
        """Room for as many items as keep the device busy, and for every row in a full tile.

        Args:
            wanted_items: so many keep it busy.
        """
        tiles = -(-num_rows // TILE_ROWS)
        parts = max(_LEAST_MAX_PARTS, wanted_items // tiles)
        return cls(max(tiles + 1, wanted_items), min(parts, max_splits(num_rows)))


@dataclass(frozen=True, slots=True)
class PrefixWork:
    """What the shared-prefix kernel does in a step.

    Attributes:
        items: [max_items, ITEM_FIELDS].
        num_items: how many are in use, the first ones.
        num_parts: results that they compute for a row, at most.
        first_keys: position of each row's first key that isn't read by them, [rows].
    """

    items: Int32s
    num_items: int
    num_parts: int
    first_keys: Int64s

    @classmethod
    def of(cls, groups: Sequence[PrefixGroup], rows: Rows, block_size: int, size: WorkSize) -> PrefixWork:
        """Cuts the groups' rows into tiles and their prefixes into parts.

        Where there are more tiles than items, the groups that save the least go without. A row's result goes to the
        row's own place.

        Args:
            rows: of one new token each.
        """
        items = np.zeros((size.max_items, ITEM_FIELDS), dtype=np.int32)
        first_keys = np.zeros(len(rows.num_tokens), dtype=np.int64)
        groups = _fitting(groups, block_size, size.max_items)
        length = _part_length(groups, block_size, size)
        count = num_parts = 0
        for group in groups:
            tokens, members = group.num_blocks * block_size, np.array(group.rows)
            firsts = np.arange(0, tokens, length)
            mine = items[count : count + _tiles(group) * len(firsts)].reshape(_tiles(group), len(firsts), ITEM_FIELDS)
            mine[..., 0] = firsts
            mine[..., 1] = np.minimum(firsts + length, tokens)
            mine[..., 2] = rows.table_starts[members[0]]
            mine[..., 3] = np.arange(len(firsts))
            mine[..., 4:] = _row_fields(rows, members)[:, None]
            first_keys[members] = tokens
            count += _tiles(group) * len(firsts)
            num_parts = max(num_parts, len(firsts))
        return cls(items, count, num_parts, first_keys)


def _row_fields(rows: Rows, members: npt.NDArray[np.intp]) -> Int32s:
    """An item's columns that list rows, for each tile of a group."""
    tile, place = np.divmod(np.arange(len(members)), TILE_ROWS)
    fields = np.full((tile[-1] + 1, 3, TILE_ROWS), -1, dtype=np.int32)
    columns = (rows.token_starts[members], rows.context_lengths[members] - 1, members)
    fields[tile, :, place] = np.stack(columns, axis=1)
    return fields.reshape(len(fields), -1)


def _tiles(group: PrefixGroup) -> int:
    return -(-len(group.rows) // TILE_ROWS)


def _fitting(groups: Sequence[PrefixGroup], block_size: int, max_items: int) -> list[PrefixGroup]:
    """As many groups as have an item for each tile, those first that save the most."""

    def saved(group: PrefixGroup) -> int:
        return saved_tokens(len(group.rows), group.num_blocks * block_size)

    fitting: list[PrefixGroup] = []
    tiles = 0
    for group in sorted(groups, key=saved, reverse=True):
        if tiles + _tiles(group) <= max_items:
            fitting.append(group)
            tiles += _tiles(group)
    return fitting


def _part_length(groups: Sequence[PrefixGroup], block_size: int, size: WorkSize) -> int:
    """Tokens of each part: as few as leave no group with more parts, and all of them with no more items, than allowed.

    A prefix cut into parts of p tokens has less than one part more than tokens / p.
    """
    longest = max((group.num_blocks for group in groups), default=0) * block_size
    tiles = sum(_tiles(group) for group in groups)
    work = sum(_tiles(group) * group.num_blocks for group in groups) * block_size
    spare = size.max_items - tiles
    length = longest if spare == 0 else max(-(-work // spare), -(-longest // size.max_parts))
    return max(_LEAST_PART, -(-length // _LEAST_PART) * _LEAST_PART)
