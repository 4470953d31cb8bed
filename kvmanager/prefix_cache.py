"""Which blocks already hold the keys and values of a prompt's beginning."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

from kvmanager.block import Block

ROOT = b""
"""The parent of a sequence's first block."""


def block_identity(parent: bytes, token_ids: Sequence[int], salt: bytes, adapter: bytes = b"") -> bytes:
    """SHA-256 over everything that a full block's keys and values depend on.

    Args:
        parent: identity of the block before, `ROOT` for the first.
        token_ids: the block's tokens, each an int32.
        salt: separates callers that must not share; the same tokens under another salt are another block.
        adapter: the weights' variant; empty for the base model.

    Every field is framed by its length, so no two different inputs are hashed as the same bytes.
    """
    digest = hashlib.sha256(b"octavo.block.1")
    for field in (parent, array("i", token_ids).tobytes(), salt, adapter):
        digest.update(len(field).to_bytes(8, "little"))
        digest.update(field)
    return digest.digest()


class PrefixCache:
    """Maps identities to the one block that is given out for each.

    A block stays in here after its last reference is gone, until the pool evicts it.
    """

    def __init__(self) -> None:
        self._blocks: dict[bytes, Block] = {}
        self.num_evicted = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def match(self, identities: Sequence[bytes], token_ids: Sequence[int], block_size: int) -> list[Block]:
        """Returns the longest chain of cached blocks for these identities, verified against the token ids.

        Takes no reference: the caller checks its capacity first, then retains them.
        """
        matched: list[Block] = []
        for index, identity in enumerate(identities):
            block = self._blocks.get(identity)
            if block is None or block.token_ids != tuple(token_ids[index * block_size : (index + 1) * block_size]):
                break
            matched.append(block)
        return matched

    def register(self, block: Block, identity: bytes, token_ids: Sequence[int]) -> None:
        """Makes a full block available to others. Where the identity is already known the first block stays."""
        if identity in self._blocks:
            return
        assert block.identity is None, f"{block} holds something else"
        block.identity = identity
        block.token_ids = tuple(token_ids)
        self._blocks[identity] = block

    def evict(self, block: Block) -> None:
        """Forgets a block whose content is about to be overwritten."""
        assert block.identity is not None
        del self._blocks[block.identity]
        block.identity = None
        block.token_ids = ()
        self.num_evicted += 1

    def check_integrity(self, blocks: Sequence[Block]) -> None:
        """Asserts that the map and the blocks agree on who holds what."""
        assert all(block.identity == identity for identity, block in self._blocks.items())
        assert sum(block.identity is not None for block in blocks) == len(self._blocks)
