"""What a step's layers share: where tokens are written, and which programs attend to what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from executor.attention.interface import AttentionParams, AttentionPlan, DecodePlan, StepLayout
from executor.attention.triton.attention import Work
from executor.attention.triton.block_cache import BlockCache
from executor.attention.triton.heads import Heads
from executor.attention.triton.prefix_work import ITEM_FIELDS, PrefixWork, WorkSize
from executor.attention.triton.slopes import Slopes
from executor.attention.triton.split_work import SharedPrefixes, SplitWork
from executor.attention.triton.tile_sizes import PHASES, Phase, TileSizes
from executor.attention.triton.tiles import (
    TILE_FIELDS,
    Int32s,
    Rows,
    flat_tables,
    max_decode_splits,
    max_splits,
    query_tiles,
    result_tokens,
    split_keys,
    written_slots,
)
from executor.attention.triton.write import rotate_and_write, write_kv
from executor.rotary import Angles
from executor.transfers import pack, unpack, upload


class _WritingPlan(AttentionPlan[BlockCache]):
    """A plan that knows its tokens' slots, [tokens], int64."""

    _slots: torch.Tensor

    def write(self, cache: BlockCache, keys: torch.Tensor, values: torch.Tensor) -> None:
        write_kv(cache, keys, values, self._slots)

    def rotate_and_write(
        self, cache: BlockCache, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, angles: Angles
    ) -> torch.Tensor:
        return rotate_and_write(cache, queries, keys, values, *angles, self._slots)


class StepPlan(_WritingPlan):
    """Decodes and prefill chunks, each in tiles of their own form."""

    def __init__(self, layout: StepLayout, heads: Heads, slopes: Slopes, device: torch.device) -> None:
        self._heads = heads
        self._slopes = slopes
        counts = np.asarray(layout.num_tokens, dtype=np.int64)
        lengths = np.asarray(layout.context_lengths, dtype=np.int64)
        block_ids, table_starts = flat_tables(layout.block_tables, lengths, layout.block_size)
        rows = Rows(counts, lengths, table_starts, np.cumsum(counts) - counts)

        parts = [part for phase in PHASES if (part := _HostPart.of(phase, rows, block_ids, layout.block_size, heads))]
        arrays: list[npt.NDArray[Any]] = [written_slots(rows, block_ids, layout.block_size), block_ids]
        for part in parts:
            arrays += [part.tiles, part.tokens, part.items]
        self._slots, ids, *tables = upload(arrays, device)
        self._parts = [
            SplitWork(Work(part.sizes, tiles, ids), part.num_splits, tokens, part.shared_prefixes(items))
            for part, tiles, tokens, items in zip(parts, tables[::3], tables[1::3], tables[2::3], strict=True)
        ]

    def attend(self, cache: BlockCache, queries: torch.Tensor, params: AttentionParams) -> torch.Tensor:
        slopes = self._slopes.tensor(params.alibi_slopes, queries.device)
        output = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
        for part in self._parts:
            part.attend(cache, queries, params, slopes, output, part.scratch(self._heads))
        return output


@dataclass(frozen=True, slots=True)
class _HostPart:
    """One phase's tables as they are made on the host."""

    sizes: TileSizes
    num_splits: int
    tiles: Int32s
    tokens: Int32s
    prefixes: PrefixWork | None

    @classmethod
    def of(cls, phase: Phase, rows: Rows, block_ids: Int32s, block_size: int, heads: Heads) -> _HostPart | None:
        """The rows of this phase; None where there are none."""
        rows = rows.only((rows.num_tokens == 1) == (phase == "decode"))
        if not len(rows.num_tokens):
            return None
        prefixes = heads.prefix_work(rows, block_ids, block_size) if phase == "decode" else None
        sizes = heads.sizes(phase)
        tiles = query_tiles(rows, sizes.queries, prefixes.first_keys if prefixes else None)
        tokens = result_tokens(rows)
        num_splits = split_keys(
            tiles, heads.programs_per_tile(sizes), sizes.keys, heads.gpu.num_running, max_splits(len(tokens))
        )
        if num_splits == 1 and not prefixes:
            tiles[:, 6] = tiles[:, 1]
        return cls(sizes, num_splits, tiles, tokens, prefixes)

    @property
    def items(self) -> Int32s:
        """Of what is read together."""
        return self.prefixes.items[: self.prefixes.num_items] if self.prefixes else np.zeros((0, ITEM_FIELDS), np.int32)

    def shared_prefixes(self, items: torch.Tensor) -> SharedPrefixes | None:
        """With the items on the device."""
        return SharedPrefixes(items, self.prefixes.num_parts) if self.prefixes else None


class GraphDecodePlan(_WritingPlan, DecodePlan[BlockCache]):
    """Decodes whose tables are always at the same place, in launches of always the same size.

    Args:
        prefixes: how much rows may read together. Where None, each reads for itself.
    """

    def __init__(
        self,
        num_rows: int,
        max_context: int,
        block_size: int,
        heads: Heads,
        slopes: Slopes,
        device: torch.device,
        prefixes: WorkSize | None = None,
    ) -> None:
        self._num_rows = num_rows
        self._max_context = max_context
        self._block_size = block_size
        self._heads = heads
        self._slopes = slopes
        self._sizes = heads.sizes("decode")
        self._programs_per_tile = heads.programs_per_tile(self._sizes)
        num_splits = max_decode_splits(num_rows, max_context, self._programs_per_tile, heads.gpu.num_running)

        self._items_shape = (prefixes.max_items if prefixes else 0, ITEM_FIELDS)
        largest = (
            np.zeros(num_rows, np.int64),
            np.zeros((num_rows, TILE_FIELDS), np.int32),
            np.zeros(self._items_shape, np.int32),
            np.zeros(num_rows * -(-max_context // block_size), np.int32),
        )
        self._tables = pack(largest, device).to(device)
        self._slots, tiles, items, block_ids = unpack(self._tables, largest)
        tokens = torch.arange(num_rows, dtype=torch.int32, device=device)
        shared = SharedPrefixes(items, prefixes.max_parts) if prefixes else None
        self._part = SplitWork(Work(self._sizes, tiles, block_ids), num_splits, tokens, shared)
        self._scratch = self._part.scratch(heads)
        self.fill(StepLayout([], [], [], block_size))

    def fill(self, layout: StepLayout) -> None:
        """As of `DecodePlan`.

        Raises:
            ValueError: there are too many rows, or one is too long or has several new tokens.
        """
        rows, block_ids = self._rows(layout)
        self._take(rows, block_ids, self._work(rows, block_ids))

    def try_fill(self, layout: StepLayout) -> bool:
        """As of `DecodePlan`; one whose rows may read together is for rows that had better do so.

        Raises:
            ValueError: as of `fill`.
        """
        if not self._part.prefixes:
            self.fill(layout)
            return True
        if len({int(table[0]) for table in layout.block_tables}) == len(layout.block_tables):
            return False  # which most steps are, and that is seen at once
        rows, block_ids = self._rows(layout)
        work = self._work(rows, block_ids)
        if work:
            self._take(rows, block_ids, work)
        return work is not None

    def _rows(self, layout: StepLayout) -> tuple[Rows, Int32s]:
        """All of the plan's rows, and their block tables."""
        given, lengths = len(layout.num_tokens), np.zeros(self._num_rows, dtype=np.int64)
        if given > self._num_rows or set(layout.num_tokens) - {1} or layout.block_size != self._block_size:
            raise ValueError(f"only {self._num_rows} decodes in blocks of {self._block_size} fit, not {layout}")
        lengths[:given] = layout.context_lengths
        if lengths.max() > self._max_context:
            raise ValueError(f"a context must have at most {self._max_context} tokens, not {lengths.max()}")
        nothing = [np.zeros(0, np.int64)] * (self._num_rows - given)
        block_ids, table_starts = flat_tables([*layout.block_tables, *nothing], lengths, self._block_size)
        return Rows(np.ones_like(lengths), lengths, table_starts, np.arange(self._num_rows)), block_ids

    def _work(self, rows: Rows, block_ids: Int32s) -> PrefixWork | None:
        return self._heads.prefix_work(rows, block_ids, self._block_size) if self._part.prefixes else None

    def _take(self, rows: Rows, block_ids: Int32s, prefixes: PrefixWork | None) -> None:
        slots = np.full(self._num_rows, -1, dtype=np.int64)
        is_given = rows.context_lengths > 0
        slots[is_given] = written_slots(rows.only(is_given), block_ids, self._block_size)
        tiles = query_tiles(rows, 1, prefixes.first_keys if prefixes else None)
        split_keys(tiles, self._programs_per_tile, self._sizes.keys, self._heads.gpu.num_running, self._part.num_splits)
        items = prefixes.items if prefixes else np.zeros(self._items_shape, np.int32)
        tables = pack((slots, tiles, items, block_ids), self._tables.device)
        self._tables[: len(tables)].copy_(tables, non_blocking=True)
        if self._scratch:
            self._part.clear(self._scratch)

    def attend(self, cache: BlockCache, queries: torch.Tensor, params: AttentionParams) -> torch.Tensor:
        slopes = self._slopes.tensor(params.alibi_slopes, queries.device)
        output = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
        self._part.attend(cache, queries, params, slopes, output, self._scratch)
        return output
