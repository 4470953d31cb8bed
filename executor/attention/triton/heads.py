"""What plans know of a model and of the GPU it runs on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from executor.attention.triton.prefix_work import PrefixWork, WorkSize, worthwhile_groups
from executor.attention.triton.tile_sizes import Phase, TileSizes, is_large_gpu, shared_prefix_sizes, tile_sizes
from executor.attention.triton.tiles import Int32s, Rows

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

    def prefix_work(self, rows: Rows, block_ids: Int32s, block_size: int) -> PrefixWork | None:
        """What rows of one new token each had better read together; None where they had better not."""
        size = self.prefix_work_size(len(rows.num_tokens))
        groups = worthwhile_groups(rows, block_ids, block_size) if size else []
        return PrefixWork.of(groups, rows, block_size, size) if size and groups else None

    def prefix_work_size(self, num_rows: int) -> WorkSize | None:
        """How much so many rows may read together; None where the kernel can't."""
        sizes = shared_prefix_sizes(self.num_heads // self.num_kv_heads, self.head_dim, self.kv_dtype)
        return WorkSize.of(num_rows, -(-self.gpu.num_running // self.programs_per_tile(sizes))) if sizes else None

    def programs_per_tile(self, sizes: TileSizes) -> int:
        """Programs that attend for the same queries, apart from splits."""
        return self.num_kv_heads * -(-self.num_heads // (self.num_kv_heads * sizes.heads))
