"""Blocks that were given back, but that a step under way may still touch."""

from __future__ import annotations

from collections import Counter

from kvmanager.accounts import Charges
from kvmanager.block import Block
from kvmanager.block_pool import BlockPool


class Fence:
    """Holds blocks until the last step that may touch them has finished.

    A retired block keeps its reference, and its charge, until then.
    """

    def __init__(self, pool: BlockPool) -> None:
        self.last_finished_step = 0
        self._pool = pool
        self._retired: dict[int, list[list[Block]]] = {}

    def retire(self, blocks: list[Block], last_step: int) -> None:
        """Releases a chain of blocks, at once or when this step has finished."""
        if last_step <= self.last_finished_step:
            self._pool.release(blocks)
        elif blocks:
            self._retired.setdefault(last_step, []).append(blocks)

    def step_finished(self, step: int) -> None:
        """Releases what waited for this step's result."""
        self.last_finished_step = step
        if self._retired:
            for due in [each for each in self._retired if each <= step]:
                for blocks in self._retired.pop(due):
                    self._pool.release(blocks)

    def charges(self) -> Charges:
        """Blocks that become available once the steps under way have finished, whatever else happens."""
        if not self._retired:
            return Counter()
        retired = Counter(self.blocks())
        return Counter(
            block.account for block, count in retired.items() if block.account and count == block.reference_count
        )

    def blocks(self) -> list[Block]:
        """The retired blocks, once for each reference."""
        return [block for tables in self._retired.values() for table in tables for block in table]
