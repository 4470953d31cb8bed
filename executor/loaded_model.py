"""A model whose weights are in memory and that has no blocks yet."""

from __future__ import annotations

from abc import ABC, abstractmethod

from executor.memory.arena import BlockArena, BlockLayout
from executor.model_runner import ModelRunner
from executor.sampling.samplers import Sampler


class LoadedModel(ABC):
    """Makes what an executor runs on.

    Attributes:
        layout: how it wants its blocks.
        block_size: tokens a block.
        kernels: which kernels compute it, for people.
    """

    layout: BlockLayout
    block_size: int
    kernels: str

    @abstractmethod
    def arena(self, num_blocks: int) -> BlockArena:
        """Takes the memory for so many blocks. Raises MemoryError where there is none."""

    @abstractmethod
    def runner(self, arena: BlockArena) -> ModelRunner:
        """Computes steps whose keys and values lie in that arena."""

    def num_graphs(self, max_sequences: int) -> int:
        """CUDA graphs that are captured for steps of up to so many decodes; memory is kept for them."""
        return 0

    @abstractmethod
    def sampler(self) -> Sampler:
        """Chooses tokens from the runner's logits."""
