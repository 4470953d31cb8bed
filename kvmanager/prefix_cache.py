"""Which blocks already hold the keys and values of a prompt's beginning."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from kvmanager.block import Block
from kvmanager.content import Content
from kvmanager.kv_events import BlockRemoved, BlockStored, KVEventLog, Tier
from kvmanager.untold import UntoldContents

MAX_SIBLINGS = 8
"""So many of the newest blocks after the same prefix are compared when a part of one may be of use."""


class PrefixCache:
    """Maps identities to the one block of a tier that is given out for each.

    A block stays in here after its last reference is gone, until the pool evicts it.

    Args:
        untold: where the executor will be told from.
        num_remembered: how many evicted blocks' names are kept, to tell "evicted" from "never seen".
    """

    def __init__(self, executor: str, tier: Tier, log: KVEventLog, untold: UntoldContents, num_remembered: int) -> None:
        self.num_evicted = 0
        self._executor = executor
        self._tier = tier
        self._log = log
        self._untold = untold
        self._blocks: dict[bytes, Block] = {}
        self._newest: dict[bytes, Block] = {}  # of the siblings after each prefix
        self._likenesses: dict[int, int] = {}
        self._num_remembered = num_remembered
        self._evicted: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, identity: bytes) -> bool:
        """Whether a block of this name is given out."""
        return identity in self._blocks

    def __iter__(self) -> Iterator[bytes]:
        """The names of all blocks that are given out."""
        return iter(self._blocks)

    def contents(self) -> Iterator[Content]:
        """Of all blocks that are given out."""
        return (block.content for block in self._blocks.values() if block.content is not None)

    def get(self, content: Content) -> Block | None:
        """The block with this content, verified against the tokens: equal names are not proof enough.

        Its own are compared one by one, those before it by their likeness: their names may have collided too.
        """
        block = self._blocks.get(content.identity)
        return block if block is not None and _same(block.content, content) else None

    def match(self, contents: Sequence[Content]) -> list[Block]:
        """Returns the longest chain of blocks with these contents.

        Takes no reference: the caller checks its capacity first, then retains them.
        """
        matched: list[Block] = []
        find, take = self._blocks.get, matched.append
        for content in contents:
            block = find(content.identity)
            if block is None or not _same(block.content, content):
                break
            take(block)
        return matched

    def siblings(self, parent: bytes, salt: bytes, step: int) -> list[Block]:
        """The newest few blocks that continue the same prefix in the same scope and were written before this step.

        What the step itself writes is passed over, not counted: each of many requests that start together has such.
        """
        siblings: list[Block] = []
        block = self._newest.get(parent or salt)
        while block is not None and len(siblings) < MAX_SIBLINGS:
            if block.written_step < step and block.content is not None and block.content.scope.salt == salt:
                siblings.append(block)
            block = block.older_sibling
        return siblings

    def was_evicted(self, content: Content) -> bool:
        """Such a block was here, not long ago."""
        return content.identity in self._evicted

    def has_likeness(self, owner: str, content: Content) -> bool:
        """The owner has a block with the same tokens after the same tokens, in whatever scope."""
        return content.likeness ^ hash(owner) in self._likenesses

    def register(self, block: Block, content: Content, written_step: int) -> bool:
        """Makes a full block available to others.

        Returns:
            False where another block is given out for this identity already; that one stays.
        """
        if content.identity in self._blocks:
            return False
        self.adopt(block, content, written_step)
        self._untold.stored(block)
        return True

    def adopt(self, block: Block, content: Content, written_step: int = 0) -> None:
        """As `register`, for a block of which the executor knows itself what it holds; its identity must be new."""
        identity, parent, scope = content.identity, content.parent, content.scope
        assert block.content is None, f"{block} holds something else"
        block.content = content
        block.hits = 0
        block.written_step = written_step
        self._blocks[identity] = block
        self._add_sibling(block, parent or scope.salt)
        likeness = content.likeness ^ hash(scope.owner)
        self._likenesses[likeness] = self._likenesses.get(likeness, 0) + 1
        if self._evicted:
            self._evicted.pop(identity, None)
        self._log.append(BlockStored(self._executor, self._tier, identity, parent, content.tokens))

    def evict(self, block: Block) -> None:
        """Forgets a block whose content is about to be overwritten."""
        content = block.content
        assert content is not None
        del self._blocks[content.identity]
        block.content = None
        self._remove_sibling(block, content.parent or content.scope.salt)
        likeness = content.likeness ^ hash(content.scope.owner)
        self._likenesses[likeness] -= 1
        if not self._likenesses[likeness]:
            del self._likenesses[likeness]
        self.num_evicted += 1
        self._remember(content.identity)
        self._untold.removed(block)
        self._log.append(BlockRemoved(self._executor, self._tier, content.identity))

    def _add_sibling(self, block: Block, prefix: bytes) -> None:
        older = self._newest.get(prefix)
        if older is not None:
            block.older_sibling, older.newer_sibling = older, block
        self._newest[prefix] = block

    def _remove_sibling(self, block: Block, prefix: bytes) -> None:
        older, newer = block.older_sibling, block.newer_sibling
        block.older_sibling = block.newer_sibling = None
        if older is not None:
            older.newer_sibling = newer
        if newer is not None:
            newer.older_sibling = older
        elif older is not None:
            self._newest[prefix] = older
        else:
            del self._newest[prefix]

    def _remember(self, identity: bytes) -> None:
        self._evicted[identity] = None
        if len(self._evicted) > self._num_remembered:
            self._evicted.popitem(last=False)

    def check_integrity(self, blocks: Sequence[Block]) -> None:
        """Asserts that the maps and the blocks agree on who holds what."""
        holding = [block for block in blocks if block.content is not None]
        assert len(holding) == len(self._blocks)
        for block in holding:
            content = block.content
            assert content is not None
            assert self._blocks[content.identity] is block
        related = [sibling for newest in self._newest.values() for sibling in _from_newest(newest)]
        assert len(related) == len(set(related)) == len(holding)
        assert sum(self._likenesses.values()) == len(holding)


def _same(found: Content | None, wanted: Content) -> bool:
    return found is not None and found.tokens == wanted.tokens and found.likeness == wanted.likeness


def _from_newest(newest: Block) -> Iterator[Block]:
    assert newest.newer_sibling is None
    block: Block | None = newest
    while block is not None:
        assert block.older_sibling is None or block.older_sibling.newer_sibling is block
        yield block
        block = block.older_sibling
