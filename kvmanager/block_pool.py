"""The physical blocks: who may have one, and which one is given up first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvmanager.block import Block, BlockList


class OutOfBlocks(Exception):
    """No free block is left. Callers check `num_free` first, so this is a bug, never a load condition."""


class BlockPool:
    """All blocks of one executor, with reference counts and O(1) allocation and release.

    A block is in exactly one of three states: *referenced* (its count is above zero), *cached* (count zero, but its
    content can still be given out by the prefix cache) or *free*. Free blocks are handed out first; after them the
    cached one that has been unused for longest.

    Args:
        num_blocks: how many blocks the executor has.
        on_evict: called with a cached block whose content is about to be overwritten.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[Block], None]) -> None:
        self.blocks = [Block(block_id) for block_id in range(num_blocks)]
        self._free = BlockList()
        self._cached = BlockList()
        self._on_evict = on_evict
        for block in self.blocks:
            self._free.append(block)

    @property
    def num_blocks(self) -> int:
        return len(self.blocks)

    @property
    def num_free(self) -> int:
        """Blocks without content."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Unreferenced blocks whose content may still be of use."""
        return len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that can be allocated now: free ones and cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def num_referenced(self) -> int:
        return len(self.blocks) - self.num_available

    def allocate(self) -> Block:
        """Returns a block with a reference count of 1 and no content.

        Raises:
            OutOfBlocks: none is available.
        """
        if self._free:
            block = self._free.pop_oldest()
        elif self._cached:
            block = self._cached.pop_oldest()
            self._on_evict(block)
            assert block.identity is None
        else:
            raise OutOfBlocks(f"all {self.num_blocks} blocks are referenced")
        block.reference_count = 1
        return block

    def retain(self, block: Block) -> None:
        """Adds a reference; a cached block becomes referenced."""
        if block.reference_count == 0:
            (self._free if block.identity is None else self._cached).remove(block)
        block.reference_count += 1

    def release(self, blocks: Sequence[Block]) -> None:
        """Drops one reference to each block of a chain.

        The chain's tail enters the cached list before its head, so that it is evicted first: a prefix without its
        tail is still of use, a tail without its prefix never is.
        """
        for block in reversed(blocks):
            assert block.reference_count > 0, f"double free of {block}"
            block.reference_count -= 1
            if block.reference_count == 0:
                (self._free if block.identity is None else self._cached).append(block)

    def check_integrity(self) -> None:
        """Asserts that every block is in exactly the state that its count and content say."""
        free, cached = list(self._free), list(self._cached)
        assert len(free) == len(self._free)
        assert len(cached) == len(self._cached)
        assert all(block.reference_count == 0 and block.identity is None for block in free)
        assert all(block.reference_count == 0 and block.identity is not None for block in cached)
        unreferenced = {block.block_id for block in self.blocks if block.reference_count == 0}
        listed = [block.block_id for block in free + cached]
        assert len(listed) == len(set(listed)), "a block is listed twice"
        assert set(listed) == unreferenced, "a block is both free and referenced, or neither"
