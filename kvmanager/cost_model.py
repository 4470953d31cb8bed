"""What moving keys and values costs, against computing them again."""

from __future__ import annotations

from enum import Enum

from kvmanager.step import Speeds


class Preemption(Enum):
    """What becomes of a preempted request's blocks: moved to the host tier, or given up."""

    AUTO = "auto"
    SWAP = "swap"
    RECOMPUTE = "recompute"


class CostModel:
    """Compares in seconds, from the speeds that the executor measured on itself (section 4.5 of the paper).

    Where a speed is not known, computing again is taken to be the cheaper way to preempt, and content that is there
    already the cheaper way to start.
    """

    def __init__(self, preemption: Preemption, block_size: int) -> None:
        self.preemption = preemption
        self.speeds = Speeds()
        self._block_size = block_size

    def prefers_swap(self, num_blocks: int, num_tokens: int) -> bool:
        """Whether so many blocks had better be moved out and in again than so many tokens computed once more."""
        if self.preemption is not Preemption.AUTO:
            return self.preemption is Preemption.SWAP
        speeds = self.speeds
        if not (speeds.prefill_tokens_per_s and speeds.swap_out_blocks_per_s and speeds.swap_in_blocks_per_s):
            return False
        moving = num_blocks / speeds.swap_out_blocks_per_s + num_blocks / speeds.swap_in_blocks_per_s
        return moving < num_tokens / speeds.prefill_tokens_per_s

    @property
    def keeps_evicted(self) -> bool:
        """Whether a cached block is worth moving to the host tier when its place is needed."""
        return self._beats_prefill(self.speeds.swap_out_blocks_per_s, self.speeds.swap_in_blocks_per_s)

    @property
    def fetches_from_host(self) -> bool:
        """Whether a cached block is worth fetching from the host tier."""
        return self._beats_prefill(self.speeds.swap_in_blocks_per_s)

    def copies_part(self, num_tokens: int) -> bool:
        """Whether the first tokens of a block are worth copying."""
        speeds = self.speeds
        if not (speeds.copy_blocks_per_s and speeds.prefill_tokens_per_s):
            return True
        return 1 / speeds.copy_blocks_per_s < num_tokens / speeds.prefill_tokens_per_s

    def _beats_prefill(self, *blocks_per_s: float) -> bool:
        prefill = self.speeds.prefill_tokens_per_s
        if not (prefill and all(blocks_per_s)):
            return True
        return sum(1 / speed for speed in blocks_per_s) < self._block_size / prefill
