"""The physical blocks of one tier: who may have one, and which one is given up first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kvmanager.accounts import Account, Accounts, Quota
from kvmanager.block import Block, BlockList


class OutOfBlocks(Exception):
    """No free block is left. Callers check `num_available` first, so this is a bug, never a load condition."""


class BlockPool:
    """All blocks of one tier, with reference counts and O(1) allocation and release.

    A block is in exactly one of three states: *referenced* (its count is above zero), *cached* (count zero, but its
    content can still be given out by the prefix cache) or *free*. Free blocks are handed out first; after them a
    cached one: of the owner furthest above its share, the one that has been unused for longest.

    Args:
        num_blocks: how many there are.
        on_evict: called with a cached block whose content is about to be overwritten.
        quotas: by owner.
    """

    def __init__(
        self,
        num_blocks: int,
        on_evict: Callable[[Block], None],
        quotas: Mapping[str, Quota],
        on_host: bool = False,
    ) -> None:
        self.blocks = [Block(block_id, on_host) for block_id in range(num_blocks)]
        self.accounts = Accounts(num_blocks, quotas)
        self.num_cached = 0
        """Unreferenced blocks whose content may still be of use."""
        self.journals: list[set[int]] = []
        """One for each who watches: the blocks that changed."""
        self._free = BlockList()
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
    def num_available(self) -> int:
        """Blocks that can be allocated now: free ones and cached ones."""
        return len(self._free) + self.num_cached

    @property
    def num_referenced(self) -> int:
        return len(self.blocks) - self.num_available

    def allocate(self, account: Account) -> Block:
        """Returns a block with a reference count of 1 and no content, charged to the account.

        Raises:
            OutOfBlocks: none is available.
        """
        if self._free:
            block = self._free.pop_oldest()
        elif self.num_cached:
            block = self.accounts.furthest_above_share().cached.pop_oldest()
            self.num_cached -= 1
            self._on_evict(block)
            assert block.content is None
        else:
            raise OutOfBlocks(f"all {self.num_blocks} blocks are referenced")
        block.reference_count = 1
        block.account = account
        account.num_charged += 1
        if self.journals:
            self.note(block)
        return block

    def adopt(self, block: Block, account: Account) -> None:
        """A free block that has come by content becomes a cached one of the account's."""
        assert block.reference_count == 0
        assert block.content is not None
        self._free.remove(block)
        block.account = account
        account.cached.append(block)
        self.num_cached += 1

    def retain(self, block: Block) -> None:
        """Adds a reference; a cached block becomes referenced, and charged to its account."""
        if block.reference_count == 0:
            assert block.content is not None, f"{block} is free"
            assert block.account is not None
            block.account.cached.remove(block)
            self.num_cached -= 1
            block.account.num_charged += 1
        block.reference_count += 1
        self.note(block)

    def release(self, blocks: Sequence[Block]) -> None:
        """Drops one reference to each block of a chain.

        The chain's tail enters the cached list before its head, so that it is evicted first: a prefix without its
        tail is still of use, a tail without its prefix never is.
        """
        for block in reversed(blocks):
            assert block.reference_count > 0, f"double free of {block}"
            block.reference_count -= 1
            if block.reference_count == 0:
                self._leave(block)
        for journal in self.journals:
            journal.update(block.block_id for block in blocks)

    def _leave(self, block: Block) -> None:
        account = block.account
        assert account is not None
        account.num_charged -= 1
        if block.content is None:
            block.account = None
            self._free.append(block)
        else:
            account.cached.append(block)
            self.num_cached += 1

    def note(self, block: Block) -> None:
        """Tells those who watch that a block has changed."""
        for journal in self.journals:
            journal.add(block.block_id)

    def check_integrity(self) -> None:
        """Asserts that every block is in exactly the state that its count and content say."""
        free = list(self._free)
        cached = [block for account in self.accounts for block in account.cached]
        assert len(free) == len(self._free)
        assert len(cached) == self.num_cached
        assert all(block.content is None and block.account is None for block in free)
        assert all(block.content is not None for block in cached)
        listed = [block.block_id for block in free + cached]
        assert len(listed) == len(set(listed)), "a block is listed twice"
        unreferenced = {block.block_id for block in self.blocks if block.reference_count == 0}
        assert set(listed) == unreferenced, "a block is both free and referenced, or neither"
        charged = dict.fromkeys(self.accounts, 0)
        for block in self.blocks:
            if block.reference_count:
                assert block.account is not None
                charged[block.account] += 1
        assert all(account.num_charged == count for account, count in charged.items()), "a charge is wrong"
        assert all(block.account is account for account in self.accounts for block in account.cached)
