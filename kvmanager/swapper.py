"""Moves keys and values between the tiers (section 4.5 of the paper)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvmanager.block import Block
from kvmanager.copies import PendingCopies
from kvmanager.cost_model import CostModel
from kvmanager.tier import MemoryTier


class Swapper:
    """Finds or makes copies of blocks in the other tier.

    Content that the other tier has already is shared, not copied.
    """

    def __init__(self, device: MemoryTier, host: MemoryTier, copies: PendingCopies, costs: CostModel) -> None:
        self._device = device
        self._host = host
        self._copies = copies
        self._costs = costs

    def has_room(self, blocks: Iterable[Block]) -> bool:
        """Whether the host tier can take these device blocks."""
        num_needed = 0
        for block in blocks:
            copy = self._host.cache.get(block.content) if block.content else None
            num_needed += copy is None or copy.reference_count == 0
        return num_needed <= self._host.pool.num_available

    def move_out(self, blocks: Sequence[Block], moved: dict[Block, Block]) -> list[Block]:
        """Returns host blocks, each with one more reference, that hold what the device blocks do.

        Args:
            moved: device block -> host block of the siblings before, which share their copies too.
        """
        copies = []
        for block in blocks:
            copy = moved.get(block)
            if copy is None:
                copy = moved[block] = self._to_host(block)
            else:
                self._host.pool.retain(copy)
            copies.append(copy)
        return copies

    def _to_host(self, block: Block) -> Block:
        if block.content is not None and (copy := self._host.cache.get(block.content)) is not None:
            self._host.pool.retain(copy)
            return copy
        assert block.account is not None
        copy = self._host.pool.allocate(self._host.pool.accounts[block.account.owner])
        self._copies.copy(block, copy)
        if block.content is not None:
            self._host.register(copy, block.content, self._copies.step)
            copy.hits = block.hits
        return copy

    def where(self, host_block: Block) -> Block:
        """The block to take for a host block: the device's, if it still caches the same; then nothing has to move."""
        cached = self._device.cache.get(host_block.content) if host_block.content is not None else None
        return cached or host_block

    def move_in(self, host_block: Block, destination: Block) -> None:
        """Fills a fresh device block from the host tier."""
        self._copies.copy(host_block, destination)
        if host_block.content is not None:
            self._device.register(destination, host_block.content, self._copies.step)
            destination.hits = host_block.hits

    def keep_evicted(self, block: Block) -> None:
        """Moves a cached device block's content to the host tier before its place is taken, where that pays."""
        content = block.content
        assert content is not None
        if self._host.pool.num_available and self._costs.keeps_evicted and not self._host.cache.get(content):
            # Held until the next step is built: no other copy of this step may go to the same place.
            self._copies.hold(self._to_host(block))
