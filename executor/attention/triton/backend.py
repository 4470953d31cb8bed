"""The attention backend of decoders on a GPU."""

from __future__ import annotations

import torch

from executor.arena import BlockArena, BlockLayout
from executor.attention.interface import AttentionBackend, AttentionPlan, DecodePlan, StepLayout
from executor.attention.triton.attention import MAX_GROUP, is_interpreted
from executor.attention.triton.block_cache import BlockCache
from executor.attention.triton.dtypes import TRITON_NAMES
from executor.attention.triton.plans import GraphDecodePlan, Heads, Slopes, StepPlan
from executor.description import DecoderDescription
from executor.errors import SettingsError

_BLOCK_SIZES = (8, 16, 32, 64, 128)
_HEAD_DIMS = range(32, 257, 8)
_FP8_CAPABILITY = (8, 9)
# Programs that fit on a multiprocessor at the same time, by their shared memory.
_PROGRAMS_PER_MULTIPROCESSOR = 2
# The interpreter passes for a small GPU.
_INTERPRETED_MULTIPROCESSORS = 4


class TritonAttention(AttentionBackend[BlockCache]):
    """Computes float16, bfloat16 and float32, with sums in float32; stores keys and values in those or in fp8 (e4m3).

    Raises:
        SettingsError: there is no GPU, and kernels are not interpreted.
    """

    name = "triton"

    def __init__(self) -> None:
        self._capability: tuple[int, int] | None = None
        multiprocessors = _INTERPRETED_MULTIPROCESSORS
        if not is_interpreted():
            if not torch.cuda.is_available():
                raise SettingsError("attention_backend triton: there is no usable GPU")
            self._capability = torch.cuda.get_device_capability()
            multiprocessors = torch.cuda.get_device_properties().multi_processor_count
        self._num_running = multiprocessors * _PROGRAMS_PER_MULTIPROCESSOR
        self._slopes = Slopes()
        self._heads: Heads | None = None

    def block_layout(self, model: DecoderDescription, block_size: int, dtype: torch.dtype) -> BlockLayout:
        self._check(model, block_size, dtype)
        self._heads = Heads(model.num_heads, model.num_kv_heads, model.head_dim, dtype, self._num_running)
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

    def _check(self, model: DecoderDescription, block_size: int, dtype: torch.dtype) -> None:
        group = model.num_heads // model.num_kv_heads
        fault = ""
        if block_size not in _BLOCK_SIZES:
            fault = f"block_size must be one of {', '.join(map(str, _BLOCK_SIZES))}, not {block_size}"
        elif model.head_dim not in _HEAD_DIMS:
            fault = f"heads must be 32 to 256 wide, in steps of 8, not {model.head_dim}"
        elif group > MAX_GROUP:
            fault = f"at most {MAX_GROUP} query heads can share a key/value head, not {group}"
        elif dtype not in TRITON_NAMES:
            fault = f"keys and values are stored in {', '.join(map(str, TRITON_NAMES))}, not in {dtype}"
        elif dtype.itemsize == 1 and self._capability is not None and self._capability < _FP8_CAPABILITY:
            has = ".".join(map(str, self._capability))
            fault = f"keys and values in fp8 need a GPU of compute capability 8.9 or newer; this one has {has}"
        if fault:
            raise SettingsError(f"attention_backend triton: {fault}")
