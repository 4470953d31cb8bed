"""The attention backend of decoders on a GPU."""

from __future__ import annotations

import torch

from executor.attention.interface import AttentionBackend, AttentionPlan, DecodePlan, StepLayout
from executor.attention.triton.attention import is_interpreted
from executor.attention.triton.block_cache import BlockCache
from executor.attention.triton.dtypes import TRITON_NAMES
from executor.attention.triton.heads import Gpu, Heads
from executor.attention.triton.plans import GraphDecodePlan, StepPlan
from executor.attention.triton.slopes import Slopes
from executor.attention.triton.tile_sizes import HEAD_DIMS
from executor.description import DecoderDescription
from executor.errors import SettingsError
from executor.memory.arena import BlockArena, BlockLayout

_BLOCK_SIZES = (8, 16, 32, 64, 128)
_FP8_CAPABILITY = (8, 9)
# What the interpreter passes for.
_SMALL_GPU = Gpu((9, 0), 4)


class TritonAttention(AttentionBackend[BlockCache]):
    """Computes float16, bfloat16 and float32, with sums in float32; stores keys and values in those or in fp8 (e4m3).

    Raises:
        SettingsError: there is no GPU, and kernels are not interpreted.
    """

    name = "triton"

    def __init__(self) -> None:
        if not is_interpreted() and not torch.cuda.is_available():
            raise SettingsError("attention_backend triton: there is no usable GPU")
        self._gpu = _SMALL_GPU if is_interpreted() else Gpu.current()
        self._slopes = Slopes()
        self._heads: Heads | None = None

    def block_layout(self, model: DecoderDescription, block_size: int, dtype: torch.dtype) -> BlockLayout:
        self._check(model, block_size, dtype)
        self._heads = Heads(model.num_heads, model.num_kv_heads, model.head_dim, dtype, self._gpu)
        return BlockLayout(dtype, (model.num_layers, 2), (model.num_kv_heads, block_size, model.head_dim))

    def layer_caches(self, arena: BlockArena) -> list[BlockCache]:
        if arena.data.device.type != "cuda" and not is_interpreted():
            raise SettingsError(f"attention_backend triton: device must be cuda, not {arena.data.device.type}")
        return [BlockCache(*layer) for layer in arena.data]

    def plan(self, layout: StepLayout, device: torch.device) -> AttentionPlan[BlockCache]:
        assert self._heads, "block_layout says which heads there are"
        return StepPlan(layout, self._heads, self._slopes, device)

    def decode_plan(
        self, num_rows: int, max_context: int, block_size: int, device: torch.device
    ) -> DecodePlan[BlockCache]:
        assert self._heads, "block_layout says which heads there are"
        return GraphDecodePlan(num_rows, max_context, block_size, self._heads, self._slopes, device)

    def shared_prefix_plan(
        self, num_rows: int, max_context: int, block_size: int, device: torch.device
    ) -> DecodePlan[BlockCache] | None:
        assert self._heads, "block_layout says which heads there are"
        size = self._heads.prefix_work_size(num_rows)
        if size is None:
            return None
        return GraphDecodePlan(num_rows, max_context, block_size, self._heads, self._slopes, device, size)

    def _check(self, model: DecoderDescription, block_size: int, dtype: torch.dtype) -> None:
        fault = ""
        if block_size not in _BLOCK_SIZES:
            fault = f"block_size must be one of {', '.join(map(str, _BLOCK_SIZES))}, not {block_size}"
        elif model.head_dim not in HEAD_DIMS:
            fault = f"heads must be a multiple of 8 wide, up to {HEAD_DIMS[-1]}, not {model.head_dim}"
        elif dtype not in TRITON_NAMES:
            fault = f"keys and values are stored in {', '.join(map(str, TRITON_NAMES))}, not in {dtype}"
        elif dtype == torch.float8_e4m3fn and self._gpu.capability < _FP8_CAPABILITY:
            has = ".".join(map(str, self._gpu.capability))
            fault = f"keys and values in fp8 need a GPU of compute capability 8.9 or newer; this one has {has}"
        if fault:
            raise SettingsError(f"attention_backend triton: {fault}")
