"""Attention by the native kernels, for decoders in torch on a CPU."""

from __future__ import annotations

import numpy as np
import torch

from executor.attention.interface import AttentionBackend, AttentionParams, AttentionPlan, StepLayout
from executor.description import DecoderDescription
from executor.errors import SettingsError
from executor.memory.arena import BlockArena, BlockLayout
from executor.native.attention import AttentionKernels, NativeBlockLayout, StepRows
from executor.native.library import Crew, Library, LibraryMissing, load_library
from executor.native.structures import AttentionParams as NativeParams
from executor.native.structures import KvCache, KvKind

_KINDS = {torch.float32: KvKind.FLOAT32, torch.bfloat16: KvKind.BFLOAT16, torch.int8: KvKind.INT8}


class CpuAttention(AttentionBackend[KvCache]):
    """Computes in float32; stores keys and values in float32, bfloat16 or, with a scale for each vector, int8.

    Args:
        library: the fastest that runs here where None.
        threads: as many as torch uses where None.

    Raises:
        SettingsError: no kernels were built that run here.
    """

    name = "cpu"

    def __init__(self, library: Library | None = None, threads: int | None = None) -> None:
        try:
            library = library or load_library()
        except LibraryMissing as error:
            raise SettingsError(f"attention_backend cpu: {error}") from error
        self._kernels = AttentionKernels(library, Crew(library, threads or torch.get_num_threads()))

    def block_layout(self, model: DecoderDescription, block_size: int, dtype: torch.dtype) -> BlockLayout:
        if dtype not in _KINDS:
            raise SettingsError(f"attention_backend cpu: dtype must be float32 or bfloat16, not {dtype}")
        return self._kernels.block_layout(
            _KINDS[dtype],
            num_layers=model.num_layers,
            block_size=block_size,
            kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
        )

    def layer_caches(self, arena: BlockArena) -> list[KvCache]:
        layout = arena.layout
        assert isinstance(layout, NativeBlockLayout)
        if arena.data.device.type != "cpu":
            raise SettingsError(f"attention_backend cpu: device must be cpu, not {arena.data.device.type}")
        return [layout.cache(arena, layer) for layer in range(layout.inner[0])]

    def plan(self, layout: StepLayout, device: torch.device) -> AttentionPlan[KvCache]:
        rows = StepRows(layout.num_tokens, layout.context_lengths, layout.block_tables)
        return _CpuPlan(self._kernels, rows)


class _CpuPlan(AttentionPlan[KvCache]):
    def __init__(self, kernels: AttentionKernels, rows: StepRows) -> None:
        self._kernels = kernels
        self._rows = rows

    def write(self, cache: KvCache, keys: torch.Tensor, values: torch.Tensor) -> None:
        self._kernels.write(cache, self._rows, *(new.float().contiguous().numpy() for new in (keys, values)))

    def attend(self, cache: KvCache, queries: torch.Tensor, params: AttentionParams) -> torch.Tensor:
        slopes = np.array(params.alibi_slopes, dtype=np.float32)
        native = NativeParams(
            scale=params.scale,
            soft_cap=params.soft_cap,
            window=params.window,
            alibi_slopes=slopes.ctypes.data if len(slopes) else None,
            heads=queries.shape[1],
        )
        attended = self._kernels.attend(cache, self._rows, native, queries.float().contiguous().numpy())
        return torch.from_numpy(attended).to(queries.dtype)
