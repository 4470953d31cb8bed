"""What the executor has still to be told about what its blocks hold."""

from __future__ import annotations

from kvmanager.block import Block
from kvmanager.kv_events import Tier
from kvmanager.step import StepBatch, StoredBlock


class UntoldContents:
    """Contents that came and went since the last step, until the next one takes them along.

    The executor keeps them beside its blocks, so that whoever leads after this KV manager can go on with them. That
    holds at every moment only with this order: what is gone is taken back as a step is launched, before anything in it
    can write to the block, and what has come counts once the step is done that was built after the rows or copies that
    fill the block.
    """

    def __init__(self) -> None:
        self._stored: dict[Block, None] = {}
        self._removed: list[tuple[Tier, int]] = []

    def stored(self, block: Block) -> None:
        """The block has its content now."""
        self._stored[block] = None

    def removed(self, block: Block) -> None:
        """The block is about to lose its content. The executor hears of it only if it heard of the content."""
        if block in self._stored:
            del self._stored[block]
        else:
            self._removed.append((_tier(block), block.block_id))

    def disowned(self, block: Block) -> None:
        """Whatever the executor said that the block holds, nobody will ask for it."""
        self._removed.append((_tier(block), block.block_id))

    def hand_over(self, batch: StepBatch) -> None:
        """Moves all of it into the batch."""
        if self._stored:
            batch.stored_blocks = [_describe(block) for block in self._stored]
            self._stored.clear()
        if self._removed:
            batch.removed_blocks, self._removed = self._removed, []


def _tier(block: Block) -> Tier:
    return Tier.HOST if block.on_host else Tier.DEVICE


def _describe(block: Block) -> StoredBlock:
    content = block.content
    assert content is not None
    return StoredBlock(_tier(block), block.block_id, content.identity, content.parent, content.tokens, content.scope)
