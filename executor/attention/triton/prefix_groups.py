"""Which rows of a step read the same first blocks: found in their block tables alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.integer]
Gain = Callable[[int, int], int]


@dataclass(frozen=True, slots=True)
class PrefixGroup:
    """Rows whose block tables begin with the same blocks.

    Attributes:
        rows: which rows, at least two.
        num_blocks: how many blocks are shared by all of them, at least one.
    """

    rows: tuple[int, ...]
    num_blocks: int


def prefix_groups(block_ids: Ids, table_starts: Ids, full_blocks: Ids, gain: Gain) -> list[PrefixGroup]:
    """The disjoint groups of rows that together gain the most; none whose gain isn't positive.

    A group has all rows that begin with its blocks: what some of a template's rows share more of does not leave the
    others to be a group of their own.

    Rows may share a few blocks with many rows and more blocks with a few: a prompt's template and one of several
    system prompts after it. Sorted by their tables, the rows that share any number of blocks are neighbours, and the
    numbers that neighbours share are a tree of nested groups (the longest-common-prefix intervals of a suffix array,
    Abouelhoda et al., "Replacing suffix trees with enhanced suffix arrays", 2004). Of each group and those within it,
    whichever gains more is taken.

    Args:
        block_ids: all rows' block tables, one after the other.
        table_starts: where each row's starts, [rows].
        full_blocks: of each row, how many blocks at its beginning may be shared, [rows].
        gain: what is gained where so many rows share so many blocks.
    """
    rows = _sharing_rows(block_ids, table_starts, full_blocks)
    if not len(rows):
        return []
    limits = full_blocks[rows]
    place = np.arange(limits.max())
    ids = np.take(block_ids, table_starts[rows, None] + place, mode="clip")
    ids[place >= limits[:, None]] = -1
    # As bytes the rows have an order that makes neighbours of those that begin alike, which is all that is asked of it.
    order = np.argsort(ids.view(f"V{ids.shape[1] * ids.itemsize}")[:, 0])
    ids, limits = ids[order], limits[order]
    differs = ids[1:] != ids[:-1]
    shared = np.where(differs.any(axis=1), differs.argmax(axis=1), len(place))
    shared = np.minimum(shared, np.minimum(limits[1:], limits[:-1]))
    return _best_groups(rows[order].tolist(), shared, gain)


def _sharing_rows(block_ids: Ids, table_starts: Ids, full_blocks: Ids) -> npt.NDArray[np.intp]:
    """Rows whose first block is another row's too; this is all that is done where nothing is shared."""
    rows = np.flatnonzero(full_blocks)
    if len(rows) < 2:
        return rows[:0]
    first = block_ids[table_starts[rows]]
    order = np.argsort(first)
    equal = np.diff(first[order]) == 0
    if not equal.any():
        return rows[:0]
    repeated = np.zeros(len(rows), dtype=bool)
    repeated[:-1] |= equal
    repeated[1:] |= equal
    return rows[order[repeated]]


@dataclass(slots=True)
class _Nested:
    """Neighbours that share at least `num_blocks`: the best of what lies within, while the last row isn't known yet."""

    first: int
    num_blocks: int
    gain: int = 0
    groups: list[PrefixGroup] = field(default_factory=list)


def _best_groups(rows: list[int], shared: Ids, gain: Gain) -> list[PrefixGroup]:
    """Of the tree of groups, whose neighbours i and i + 1 share `shared[i]` blocks, those that gain the most."""
    open_groups = [_Nested(0, 0)]
    changes = np.flatnonzero(np.diff(shared, prepend=0, append=0))
    for i, num_blocks in zip(changes.tolist(), [*shared[changes[:-1]].tolist(), 0], strict=True):
        first, inner = i, _Nested(i, 0)
        while open_groups[-1].num_blocks > num_blocks:
            inner = _closed(open_groups.pop(), inner, rows, i + 1, gain)
            first = inner.first
        if open_groups[-1].num_blocks < num_blocks:
            open_groups.append(_Nested(first, num_blocks))
        outer = open_groups[-1]
        outer.gain += inner.gain
        outer.groups += inner.groups
    return open_groups[0].groups


def _closed(group: _Nested, inner: _Nested, rows: list[int], end: int, gain: Gain) -> _Nested:
    """What is best for a group whose last row is before `end`: itself, or what lies within, `inner` being the last."""
    apart, groups = group.gain + inner.gain, group.groups + inner.groups
    together = gain(end - group.first, group.num_blocks)
    if together > 0 and together >= apart:
        apart, groups = together, [PrefixGroup(tuple(rows[group.first : end]), group.num_blocks)]
    return _Nested(group.first, 0, apart, groups)
