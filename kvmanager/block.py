"""A physical block and the list that unreferenced blocks wait in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvmanager.content import Content

if TYPE_CHECKING:
    from kvmanager.accounts import Account


class Block:
    """One physical block: `block_size` tokens of every layer's keys and values (section 4.1 of the paper).

    Attributes:
        reference_count: entries in block tables and pins that name this block, plus retired entries that a step under
            way may still touch. A block with a count above 1 is never written.
        content: what the prefix cache knows it to hold; None while it holds nothing that can be given out.
        account: whom it is charged to while it is referenced, and counted for while it is cached.
        on_host: it is one of the host tier's.
        older_sibling, newer_sibling: blocks with content that continue the same prefix.
        hits: how often the prefix cache gave it out with this content.
        written_step: last step that writes to it, once it has content; a later one may copy from it.
    """

    __slots__ = (
        "account",
        "block_id",
        "content",
        "hits",
        "newer_sibling",
        "next",
        "older_sibling",
        "on_host",
        "previous",
        "reference_count",
        "written_step",
    )

    def __init__(self, block_id: int, on_host: bool = False) -> None:
        self.block_id = block_id
        self.on_host = on_host
        self.reference_count = 0
        self.content: Content | None = None
        self.account: Account | None = None
        self.hits = 0
        self.written_step = 0
        self.previous: Block | None = None
        self.next: Block | None = None
        self.older_sibling: Block | None = None
        self.newer_sibling: Block | None = None

    def __repr__(self) -> str:
        return f"Block({self.block_id}, references={self.reference_count}, cached={self.content is not None})"


class BlockList:
    """Blocks in order, linked through the blocks themselves, so that taking one out of the middle costs O(1).

    A block is in at most one list at a time.
    """

    def __init__(self) -> None:
        self._head = Block(-1)  # a ring: the head's next is the oldest block, its previous the newest
        self._head.previous = self._head.next = self._head
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Block]:
        block = self._head.next
        while block is not None and block is not self._head:
            yield block
            block = block.next

    def append(self, block: Block) -> None:
        """Puts a block in at the newest end."""
        newest = self._head.previous
        assert newest is not None
        assert block.next is None
        block.previous, block.next = newest, self._head
        newest.next = self._head.previous = block
        self._length += 1

    def remove(self, block: Block) -> None:
        """Takes a block out of wherever it is."""
        previous, following = block.previous, block.next
        assert previous is not None
        assert following is not None
        previous.next, following.previous = following, previous
        block.previous = block.next = None
        self._length -= 1

    def pop_oldest(self) -> Block:
        """Takes the oldest block out. The list must not be empty."""
        head = self._head
        block = head.next
        assert block is not None
        assert block is not head
        following = block.next
        assert following is not None
        head.next, following.previous = following, head
        block.previous = block.next = None
        self._length -= 1
        return block
