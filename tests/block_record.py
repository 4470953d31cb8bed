"""What an executor keeps beside its blocks: what they hold, for whoever leads next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import pairwise

from kvmanager.block import Block
from kvmanager.content import ROOT, block_identity
from kvmanager.kv_events import Tier
from kvmanager.memory import Memory
from kvmanager.step import StepBatch, StoredBlock

Key = tuple[Tier, int]
Slots = list[int | None]


class BlockRecord:
    """Takes contents back when a step is launched, and counts new ones once it is done, as a real executor does.

    Whatever it says is compared with the memory, where each slot has the fingerprint of a whole context.

    Args:
        slots: the memory of one block.
        own_names: blocks have names that a test made up. They may collide: what a block follows is not known by them.
    """

    def __init__(self, slots: Callable[[Key], Slots], own_names: bool = False) -> None:
        self.blocks: dict[Key, StoredBlock] = {}
        """In the order in which they were stored."""
        self._slots = slots
        self._own_names = own_names
        self._under_way: deque[dict[Key, StoredBlock]] = deque()
        self._ends: dict[bytes, int] = {ROOT: 0}  # the last fingerprint in blocks of each identity

    def launch(self, batch: StepBatch) -> None:
        """A step begins; those before it may not be done."""
        for key in batch.removed_blocks:
            assert self._take_back(key), f"{key} is removed, but nobody said that it holds anything"
        stores: dict[Key, StoredBlock] = {}
        for block in batch.stored_blocks:
            key = block.tier, block.block_id
            assert key not in stores, f"{key} is stored twice in one step"
            assert not self._holds(key), f"{key} is stored, but what it held was not removed"
            stores[key] = block
        self._under_way.append(stores)

    def _take_back(self, key: Key) -> bool:
        found = self.blocks.pop(key, None) is not None
        for stores in self._under_way:
            found |= stores.pop(key, None) is not None
        return found

    def _holds(self, key: Key) -> bool:
        return key in self.blocks or any(key in stores for stores in self._under_way)

    def finish(self, written: set[Key]) -> None:
        """The oldest step is done, and has written to these blocks."""
        stores = self._under_way.popleft()
        for key, block in stores.items():
            self.blocks[key] = block
        for key in written | stores.keys():
            if key in self.blocks:
                self._check(key)

    def check_complete(self, memory: Memory) -> None:
        """With no step under way: asserts that what is said is what the KV manager could give out, and nothing else.

        But for what the next step will tell.
        """
        assert not self._under_way
        untold = memory.untold
        known = [block for tier in (memory.device, memory.host) for block in tier.pool.blocks if block.content]
        removed = set(untold._removed)
        assert len(removed) == len(untold._removed)
        assert set(map(_key, known)) == self.blocks.keys() - removed | {_key(block) for block in untold._stored}
        for block in known:
            if block not in untold._stored:
                assert self.blocks[_key(block)].identity == block.content.identity

    def _check(self, key: Key) -> None:
        """Asserts that the block holds its tokens, after the tokens of its parent."""
        block, slots = self.blocks[key], self._slots(key)
        tokens = memoryview(block.tokens).cast("i")
        assert len(tokens) == len(slots), f"{key}: {len(tokens)} tokens in a block of {len(slots)}"
        for (before, found), token in zip(pairwise(slots), tokens[1:], strict=True):
            assert found == hash((before, token)), f"{key} does not hold what was said"
        if self._own_names:
            return
        assert block.identity == block_identity(block.parent, block.tokens, block.scope.salt)
        before, end = self._ends.get(block.parent), slots[-1]
        if before is not None:  # what a block follows that was never told of is not known
            assert slots[0] == hash((before, tokens[0])), f"{key} follows another context"
        assert end is not None
        assert self._ends.setdefault(block.identity, end) == end


def _key(block: Block) -> Key:
    return (Tier.HOST if block.on_host else Tier.DEVICE), block.block_id
