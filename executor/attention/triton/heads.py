"""What plans know of a model and of the GPU it runs on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from executor.attention.triton.tile_sizes import Phase, TileSizes, is_large_gpu, tile_sizes

# Programs that fit on a multiprocessor at the same time, by their shared memory.
_PROGRAMS_PER_MULTIPROCESSOR = 2


@dataclass(frozen=True, slots=True)
class Gpu:
    """What tiles are chosen by.

    Attributes:
        capability: (9, 0) for sm_90.
    """

    capability: tuple[int, int]
    multiprocessors: int

    @classmethod
    def current(cls) -> Gpu:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        return cls((properties.major, properties.minor), properties.multi_processor_count)

    @property
    def num_running(self) -> int:
        """Programs of the attention kernel that run at a time."""
        return self.multiprocessors * _PROGRAMS_PER_MULTIPROCESSOR


@dataclass(frozen=True, slots=True)
class Heads:
    """A model's heads.

    Attributes:
        kv_dtype: of keys and values.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    kv_dtype: torch.dtype
    gpu: Gpu

    def sizes(self, phase: Phase) -> TileSizes:
        group = self.num_heads // self.num_kv_heads
        return tile_sizes(phase, group, self.head_dim, self.kv_dtype, is_large=is_large_gpu(self.gpu.capability))

    def programs_per_tile(self, sizes: TileSizes) -> int:
        """Programs that attend for the same queries, apart from splits."""
        return self.num_kv_heads * -(-self.num_heads // (self.num_kv_heads * sizes.heads))
