"""What a step's layers share: where tokens are written, and which programs attend to what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from executor.attention.interface import AttentionParams, AttentionPlan, DecodePlan, StepLayout
from executor.attention.triton.attention import PHASES, Phase, Work, attend, queries_per_tile, tile_sizes
from executor.attention.triton.block_cache import BlockCache
from executor.attention.triton.merge import merge
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
from executor.attention.triton.upload import pack, unpack, upload
from executor.attention.triton.write import rotate_and_write, write_kv
from executor.rotary import Angles


@dataclass(frozen=True, slots=True)
class Heads:
    """A model's attention, on a GPU.

    Attributes:
        kv_dtype: of keys and values.
        num_running: programs of the attention kernel that run at a time.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    kv_dtype: torch.dtype
    num_running: int

    @property
    def group(self) -> int:
        return self.num_heads // self.num_kv_heads

    def query_tiles(self, phase: Phase, rows: Rows) -> Int32s:
        return query_tiles(rows, queries_per_tile(phase, self.group, self.head_dim))

    def split_keys(self, phase: Phase, tiles: Int32s, most: int) -> int:
        keys = tile_sizes(phase, self.group, self.head_dim, self.kv_dtype).keys
        return split_keys(tiles, self.num_kv_heads, keys, self.num_running, most)


class Slopes:
    """ALiBi's slopes as tensors, each made once."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[tuple[float, ...], torch.device], torch.Tensor] = {}

    def tensor(self, slopes: tuple[float, ...], device: torch.device) -> torch.Tensor:
        """[heads], float32; a single number where there are no slopes."""
        key = (slopes, device)
        if key not in self._tensors:
            self._tensors[key] = torch.tensor(slopes or (0.0,), dtype=torch.float32, device=device)
        return self._tensors[key]


@dataclass(frozen=True, slots=True)
class Scratch:
    """Results of splits.

    Attributes:
        parts: [splits, results, heads, head_dim], float32.
        log_sums: [splits, results, heads], float32.
    """

    parts: torch.Tensor
    log_sums: torch.Tensor

    @classmethod
    def empty(cls, num_splits: int, num_results: int, heads: Heads, device: torch.device) -> Scratch:
        shape = (num_splits, num_results, heads.num_heads, heads.head_dim)
        return cls(torch.empty(shape, device=device), torch.empty(shape[:-1], device=device))


@dataclass(frozen=True, slots=True)
class SplitWork:
    """Work, and what becomes of its results.

    Attributes:
        num_splits: 1 where results go to the output straight.
        tokens: [results], int32: the token of each result, where they are split.
    """

    work: Work
    num_splits: int
    tokens: torch.Tensor

    def attend(
        self,
        cache: BlockCache,
        queries: torch.Tensor,
        params: AttentionParams,
        slopes: torch.Tensor,
        output: torch.Tensor,
        scratch: Scratch | None,
    ) -> None:
        if scratch is None:
            attend(self.work, cache, queries, params, slopes, output)
        else:
            attend(self.work, cache, queries, params, slopes, scratch.parts, scratch.log_sums)
            merge(scratch.parts, scratch.log_sums, self.tokens, output)


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

        parts = [part for phase in PHASES if (part := _HostPart.of(phase, rows, heads))]
        arrays: list[npt.NDArray[Any]] = [written_slots(rows, block_ids, layout.block_size), block_ids]
        for part in parts:
            arrays += [part.tiles, part.tokens]
        self._slots, ids, *tables = upload(arrays, device)
        self._parts = [
            SplitWork(Work(part.phase, tiles, ids), part.num_splits, tokens)
            for part, tiles, tokens in zip(parts, tables[::2], tables[1::2], strict=True)
        ]

    def attend(self, cache: BlockCache, queries: torch.Tensor, params: AttentionParams) -> torch.Tensor:
        slopes = self._slopes.tensor(params.alibi_slopes, queries.device)
        output = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
        for part in self._parts:
            scratch = None
            if part.num_splits > 1:
                scratch = Scratch.empty(part.num_splits, len(part.tokens), self._heads, queries.device)
            part.attend(cache, queries, params, slopes, output, scratch)
        return output


@dataclass(frozen=True, slots=True)
class _HostPart:
    """One phase's tables as they are made on the host."""

    phase: Phase
    num_splits: int
    tiles: Int32s
    tokens: Int32s

    @classmethod
    def of(cls, phase: Phase, rows: Rows, heads: Heads) -> _HostPart | None:
        """The rows of this phase; None where there are none."""
        rows = rows.only((rows.num_tokens == 1) == (phase == "decode"))
        if not len(rows.num_tokens):
            return None
        tiles, tokens = heads.query_tiles(phase, rows), result_tokens(rows)
        num_splits = heads.split_keys(phase, tiles, max_splits(len(tokens)))
        if num_splits == 1:
            tiles[:, 6] = tiles[:, 1]
        return cls(phase, num_splits, tiles, tokens)


class GraphDecodePlan(_WritingPlan, DecodePlan[BlockCache]):
    """Decodes whose tables are always at the same place, in launches of always the same size."""

    def __init__(
        self, num_rows: int, max_context: int, block_size: int, heads: Heads, slopes: Slopes, device: torch.device
    ) -> None:
        self._num_rows = num_rows
        self._max_context = max_context
        self._block_size = block_size
        self._heads = heads
        self._slopes = slopes
        self._num_splits = max_decode_splits(num_rows, max_context, heads.num_kv_heads, heads.num_running)

        largest = (
            np.zeros(num_rows, np.int64),
            np.zeros((num_rows, TILE_FIELDS), np.int32),
            np.zeros(num_rows * -(-max_context // block_size), np.int32),
        )
        self._tables = pack(largest, device).to(device)
        self._slots, tiles, block_ids = unpack(self._tables, largest)
        tokens = torch.arange(num_rows, dtype=torch.int32, device=device)
        self._part = SplitWork(Work("decode", tiles, block_ids), self._num_splits, tokens)
        self._scratch = Scratch.empty(self._num_splits, num_rows, heads, device) if self._num_splits > 1 else None
        self.fill(StepLayout([], [], [], block_size))

    def fill(self, layout: StepLayout) -> None:
        """As of `DecodePlan`.

        Raises:
            ValueError: there are too many rows, or one is too long or has several new tokens.
        """
        given, lengths = len(layout.num_tokens), np.zeros(self._num_rows, dtype=np.int64)
        if given > self._num_rows or set(layout.num_tokens) - {1} or layout.block_size != self._block_size:
            raise ValueError(f"only {self._num_rows} decodes in blocks of {self._block_size} fit, not {layout}")
        lengths[:given] = layout.context_lengths
        if lengths.max() > self._max_context:
            raise ValueError(f"a context must have at most {self._max_context} tokens, not {lengths.max()}")
        nothing = [np.zeros(0, np.int64)] * (self._num_rows - given)
        block_ids, table_starts = flat_tables([*layout.block_tables, *nothing], lengths, self._block_size)
        rows = Rows(np.ones_like(lengths), lengths, table_starts, np.arange(self._num_rows))

        slots = np.full(self._num_rows, -1, dtype=np.int64)
        slots[:given] = written_slots(rows.only(lengths > 0), block_ids, self._block_size)
        tiles = self._heads.query_tiles("decode", rows)
        self._heads.split_keys("decode", tiles, self._num_splits)
        tables = pack((slots, tiles, block_ids), self._tables.device)
        self._tables[: len(tables)].copy_(tables, non_blocking=True)

    def attend(self, cache: BlockCache, queries: torch.Tensor, params: AttentionParams) -> torch.Tensor:
        slopes = self._slopes.tensor(params.alibi_slopes, queries.device)
        output = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
        self._part.attend(cache, queries, params, slopes, output, self._scratch)
        return output
