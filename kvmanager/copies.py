"""The copies of the step that is being built."""

from __future__ import annotations

from kvmanager.block import Block
from kvmanager.block_pool import BlockPool
from kvmanager.step import StepBatch


class PendingCopies:
    """Copies within the device tier, and between the tiers, until the step takes them along.

    A step moves and copies before it writes. So what it copies from has to stay as it is only until the next one is
    built: it is held that long.
    """

    def __init__(self, device: BlockPool, host: BlockPool) -> None:
        self.step = 0
        self.held_on_device: list[Block] = []
        self.held_on_host: list[Block] = []
        self._device = device
        self._host = host
        self._swaps_out: list[tuple[int, int]] = []
        self._swaps_in: list[tuple[int, int]] = []
        self._block_copies: list[tuple[int, int]] = []

    def start_step(self, step: int) -> None:
        """What earlier steps copied from may be overwritten by this one."""
        self.step = step
        if self.held_on_device:
            self._device.release(self.held_on_device)
            self.held_on_device = []
        if self.held_on_host:
            self._host.release(self.held_on_host)
            self.held_on_host = []

    def hold(self, block: Block) -> None:
        """Takes over one reference to a block that this step copies from, or, on the host, to."""
        (self.held_on_host if block.on_host else self.held_on_device).append(block)

    def copy(self, source: Block, destination: Block) -> None:
        """From either tier to either tier, but not within the host's."""
        pair = source.block_id, destination.block_id
        if source.on_host:
            self._swaps_in.append(pair)
        elif destination.on_host:
            self._swaps_out.append(pair)
        else:
            self._block_copies.append(pair)

    def hand_over(self, batch: StepBatch) -> None:
        """Moves the copies into the batch."""
        batch.swaps_out, self._swaps_out = self._swaps_out, []
        batch.swaps_in, self._swaps_in = self._swaps_in, []
        batch.block_copies, self._block_copies = self._block_copies, []

    @property
    def empty(self) -> bool:
        """There is none."""
        return not (self._swaps_out or self._swaps_in or self._block_copies)
