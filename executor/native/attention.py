"""Attention of the native kernels, and how they lay out blocks."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_int32, c_int64, c_void_p
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from executor.memory.arena import BlockArena, BlockLayout
from executor.native.library import Crew, Library
from executor.native.structures import AttentionParams, KvCache, KvKind

Floats = npt.NDArray[np.float32]

_ALIGNMENT = 64


class StepRowsStruct(ctypes.Structure):
    """`octavo::StepRows`."""

    _fields_ = (
        ("num_rows", c_int64),
        ("num_tokens", c_int64),
        ("counts", c_void_p),
        ("contexts", c_void_p),
        ("tables", c_void_p),
    )


@dataclass(frozen=True, slots=True)
class NativeBlockLayout(BlockLayout):
    """Bytes [num_blocks, layers, bytes of a layer]: a block lies in one piece, so that it is copied as one.

    Attributes:
        kind: of the keys and values.
        block_size: tokens a block.
    """

    kind: KvKind
    block_size: int
    kv_heads: int
    head_dim: int

    @property
    def layer_stride(self) -> int:
        """Bytes from one layer's part of a block to the next one's."""
        return self.inner[1]

    def cache(self, arena: BlockArena, layer: int) -> KvCache:
        """A layer's keys and values in an arena of this layout; valid as long as the arena lives."""
        return KvCache(
            data=arena.data.data_ptr() + layer * self.layer_stride,
            block_stride=self.bytes_per_block,
            kind=self.kind,
            block_size=self.block_size,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
        )


class StepRows:
    """The rows of a step as the kernels take them; see `executor.attention.StepLayout`."""

    def __init__(self, counts: Sequence[int], contexts: Sequence[int], tables: Sequence[npt.NDArray[np.int64]]) -> None:
        addresses = [table.ctypes.data for table in tables]
        self._columns = np.array([counts, contexts, addresses], dtype=np.int64)
        self._tables = tables
        self.num_tokens = int(self._columns[0].sum())
        self.struct = StepRowsStruct(len(counts), self.num_tokens, *(column.ctypes.data for column in self._columns))


class AttentionKernels:
    """The functions of src/attention.h, each run by a crew of threads. Not to be called from two threads at once."""

    def __init__(self, library: Library, crew: Crew) -> None:
        self._crew = crew
        self._block_bytes = library.function("octavo_kv_block_bytes", c_int64, c_int32, c_int32, c_int32, c_int32)
        cache, rows, params = POINTER(KvCache), POINTER(StepRowsStruct), POINTER(AttentionParams)
        self._write = library.function("octavo_write_kv", None, c_void_p, cache, rows, c_void_p, c_void_p, c_int64)
        self._workspace_bytes = library.function(
            "octavo_attention_workspace_bytes", c_int64, c_void_p, cache, rows, params
        )
        self._attend = library.function(
            "octavo_attend", None, c_void_p, cache, rows, params, c_void_p, c_int64, c_void_p, c_int64, c_void_p
        )
        self._workspace: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

    def block_layout(
        self, kind: KvKind, *, num_layers: int, block_size: int, kv_heads: int, head_dim: int
    ) -> NativeBlockLayout:
        """How an arena of such keys and values is arranged."""
        layer = self._block_bytes(kind, block_size, kv_heads, head_dim)
        return NativeBlockLayout(torch.uint8, (), (num_layers, layer), kind, block_size, kv_heads, head_dim)

    def write(self, cache: KvCache, rows: StepRows, keys: Floats, values: Floats) -> None:
        """Stores the new tokens' keys and values, [tokens, kv_heads, head_dim], in their slots."""
        stride = cache.kv_heads * cache.head_dim
        self._write(self._crew.handle, cache, rows.struct, keys.ctypes.data, values.ctypes.data, stride)

    def attend(
        self, cache: KvCache, rows: StepRows, params: AttentionParams, queries: Floats, out: Floats | None = None
    ) -> Floats:
        """Attention of each new token, [tokens, heads, head_dim], over its sequence up to itself."""
        out = np.empty_like(queries) if out is None else out
        stride = params.heads * cache.head_dim
        self._attend(
            self._crew.handle,
            cache,
            rows.struct,
            params,
            queries.ctypes.data,
            stride,
            out.ctypes.data,
            stride,
            self._room(cache, rows, params),
        )
        return out

    def _room(self, cache: KvCache, rows: StepRows, params: AttentionParams) -> int:
        """Address of the workspace, aligned to a cache line."""
        size = self._workspace_bytes(self._crew.handle, cache, rows.struct, params) + _ALIGNMENT
        if size > self._workspace.nbytes:
            self._workspace = np.empty(size, np.uint8)
        return -(-self._workspace.ctypes.data // _ALIGNMENT) * _ALIGNMENT
