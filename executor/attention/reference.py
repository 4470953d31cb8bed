"""Attention in plain torch: gather a sequence's keys and values by slot, then standard attention over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from executor.attention.interface import AttentionBackend, AttentionParams, AttentionPlan, StepLayout
from executor.description import DecoderDescription
from executor.memory.arena import BlockArena, BlockLayout

# Rows are attended together as long as padding at most doubles the work and the copies of their keys stay small.
_MAX_PADDED_WORK = 2
_MAX_GATHERED_TOKENS = 1 << 16


@dataclass(frozen=True, slots=True)
class SlotCache:
    """One layer's keys and values by slot, each [num_blocks * block_size, kv_heads, head_dim].

    Slot s is entry s % block_size of block s // block_size.
    """

    keys: torch.Tensor
    values: torch.Tensor


class ReferenceAttention(AttentionBackend[SlotCache]):
    """Runs on any device and in any dtype; says what the other backends must compute."""

    name = "reference"

    def block_layout(self, model: DecoderDescription, block_size: int, dtype: torch.dtype) -> BlockLayout:
        return BlockLayout(dtype, (model.num_layers, 2), (block_size, model.num_kv_heads, model.head_dim))

    def layer_caches(self, arena: BlockArena) -> list[SlotCache]:
        return [SlotCache(*layer.flatten(1, 2)) for layer in arena.data]

    def plan(self, layout: StepLayout, device: torch.device) -> AttentionPlan[SlotCache]:
        groups = [_Group.of(layout, rows, device) for rows in _grouped(layout)]
        return _ReferencePlan(torch.from_numpy(_written_slots(layout)).to(device), groups)


class _ReferencePlan(AttentionPlan[SlotCache]):
    def __init__(self, slots: torch.Tensor, groups: list[_Group]) -> None:
        self._slots = slots
        self._groups = groups

    def write(self, cache: SlotCache, keys: torch.Tensor, values: torch.Tensor) -> None:
        cache.keys.index_copy_(0, self._slots, keys)
        cache.values.index_copy_(0, self._slots, values)

    def attend(self, cache: SlotCache, queries: torch.Tensor, params: AttentionParams) -> torch.Tensor:
        result = torch.empty_like(queries)
        for group in self._groups:
            group.attend(cache, queries, params, result)
        return result


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows attended together, padded to Q queries and L keys each.

    Padding never names foreign memory: a padded query is the row's first one again (its result is dropped), a padded
    key is the sequence's first one again (it is masked).

    Attributes:
        queries: flat token index of each query, [rows * Q].
        slots: slot of each key, [rows, L].
        distances: position of the key less that of the query, [rows, 1, Q, L].
        visible: whether the query may see the key, likewise; None where every query sees every key.
        real: indices into `queries` that are not padding; None if none is.
    """

    queries: torch.Tensor
    slots: torch.Tensor
    distances: torch.Tensor
    visible: torch.Tensor | None
    real: torch.Tensor | None

    @classmethod
    def of(cls, layout: StepLayout, rows: list[int], device: torch.device) -> _Group:
        counts = np.array([layout.num_tokens[row] for row in rows], dtype=np.int64)[:, None]
        lengths = np.array([layout.context_lengths[row] for row in rows], dtype=np.int64)[:, None]
        starts = np.cumsum([0, *layout.num_tokens], dtype=np.int64)[rows][:, None]
        query, key = np.arange(counts.max())[None, :], np.arange(lengths.max())[None, :]

        real = (query < counts).reshape(-1)
        queries = starts + np.where(query < counts, query, 0)
        distances = key[:, None, :] - (lengths - counts + query)[:, :, None]
        visible = (distances <= 0) & (key < lengths)[:, None, :]
        slots = _slots(_padded_tables(layout, rows), np.where(key < lengths, key, 0), layout.block_size)
        return cls(
            queries=torch.from_numpy(queries.reshape(-1)).to(device),
            slots=torch.from_numpy(slots).to(device),
            distances=torch.from_numpy(distances[:, None]).to(device),
            visible=None if visible.all() else torch.from_numpy(visible[:, None]).to(device),
            real=None if real.all() else torch.from_numpy(np.flatnonzero(real)).to(device),
        )

    def attend(self, cache: SlotCache, queries: torch.Tensor, params: AttentionParams, result: torch.Tensor) -> None:
        rows, length = self.slots.shape
        heads, head_dim = queries.shape[1:]
        kv_heads = cache.keys.shape[1]
        shared = heads // kv_heads
        keys, values = (
            # index_select copies whole slots; indexing with brackets took three times as long.
            memory.index_select(0, self.slots.view(-1)).view(rows, length, kv_heads, head_dim).transpose(1, 2)
            for memory in (cache.keys, cache.values)
        )
        # The query heads that share a key/value head become further queries of that head.
        mine = queries[self.queries].view(rows, -1, kv_heads, shared, head_dim).permute(0, 2, 3, 1, 4)
        count = mine.shape[3]
        mine = mine.reshape(rows, kv_heads, -1, head_dim)
        bias = self._bias(params, kv_heads, shared, mine)
        if params.soft_cap:
            scores = mine @ keys.transpose(2, 3) * params.scale
            scores = params.soft_cap * torch.tanh(scores / params.soft_cap)
            attended = torch.softmax(scores if bias is None else scores + bias, dim=-1) @ values
        else:
            attended = F.scaled_dot_product_attention(mine, keys, values, attn_mask=bias, scale=params.scale)
        attended = attended.view(rows, kv_heads, shared, count, head_dim).permute(0, 3, 1, 2, 4)
        attended = attended.reshape(-1, heads, head_dim)
        if self.real is None:
            result[self.queries] = attended
        else:
            result[self.queries[self.real]] = attended[self.real]

    def _bias(self, params: AttentionParams, kv_heads: int, shared: int, queries: torch.Tensor) -> torch.Tensor | None:
        """What is added to the scores, [rows, 1 or kv_heads, shared * Q, L]; None where it is nothing."""
        visible = self.visible
        if params.window:
            near = self.distances > -params.window
            visible = near if visible is None else visible & near
        if visible is None and not params.alibi_slopes:
            return None
        rows, _, count, length = self.distances.shape
        bias = queries.new_zeros(rows, 1, 1, count, length)
        if params.alibi_slopes:
            slopes = queries.new_tensor(params.alibi_slopes).view(1, kv_heads, shared, 1, 1)
            bias = bias + slopes * self.distances[:, :, None]
        if visible is not None:
            bias = bias.masked_fill(~visible[:, :, None], float("-inf"))
        return bias.expand(-1, -1, shared, count, length).reshape(rows, -1, shared * count, length)


def _written_slots(layout: StepLayout) -> npt.NDArray[np.int64]:
    """Slots of all new tokens, [tokens]."""
    counts = np.asarray(layout.num_tokens, dtype=np.int64)
    ends = np.asarray(layout.context_lengths, dtype=np.int64)
    rows = np.repeat(np.arange(len(counts)), counts)
    positions = np.arange(counts.sum()) + np.repeat(ends - np.cumsum(counts), counts)
    logical = positions // layout.block_size
    blocks = _padded_tables(layout, range(len(counts)))[rows, logical]
    slots: npt.NDArray[np.int64] = blocks * layout.block_size + positions % layout.block_size
    return slots


def _slots(tables: npt.NDArray[np.int64], positions: npt.NDArray[np.int64], block_size: int) -> npt.NDArray[np.int64]:
    """Slots of `positions` [rows, n] through `tables` [rows, blocks]."""
    slots: npt.NDArray[np.int64] = (
        np.take_along_axis(tables, positions // block_size, axis=1) * block_size + positions % block_size
    )
    return slots


def _padded_tables(layout: StepLayout, rows: Sequence[int]) -> npt.NDArray[np.int64]:
    tables = np.zeros((len(rows), max(len(layout.block_tables[row]) for row in rows)), dtype=np.int64)
    for i, row in enumerate(rows):
        tables[i, : len(layout.block_tables[row])] = layout.block_tables[row]
    return tables


def _grouped(layout: StepLayout) -> list[list[int]]:
    """Rows of like shape together: decodes with decodes, chunks with chunks of about their size."""
    shapes = list(zip(layout.num_tokens, layout.context_lengths, strict=True))
    groups: list[list[int]] = []
    work, widest = 0, 0
    for row in sorted(range(len(shapes)), key=shapes.__getitem__):
        count, length = shapes[row]
        widest_now, size = max(widest, length), len(groups[-1]) + 1 if groups else 1
        fits = size * widest_now <= _MAX_GATHERED_TOKENS
        if groups and fits and size * count * widest_now <= _MAX_PADDED_WORK * (work + count * length):
            groups[-1].append(row)
            work, widest = work + count * length, widest_now
        else:
            groups.append([row])
            work, widest = count * length, length
    return groups
