"""Takes over what the blocks of an executor hold already, whoever had it computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvmanager.content import ROOT, Content, Identify, likeness_after
from kvmanager.kv_events import Tier
from kvmanager.memory import Memory
from kvmanager.step import StoredBlock
from kvmanager.tier import MemoryTier

TOKEN_BYTES = 4

Blocks = Mapping[bytes, StoredBlock]
"""By identity."""


def adopt(memory: Memory, stored: Iterable[StoredBlock], identify: Identify) -> None:
    """Fills a memory that nobody has used yet with what its executor says that it holds.

    A block is taken if its name is that of its content, and if it goes on from one that is taken: without its prefix
    nobody can use it. All others stay free, and the executor will hear that. Linear in the number of blocks.

    Args:
        stored: in the order in which it was stored: what came last is taken to be used soonest.
        identify: how blocks are named.
    """
    said: dict[Tier, list[StoredBlock]] = {Tier.DEVICE: [], Tier.HOST: []}
    for block in stored:
        said[block.tier].append(block)
    device = _Adoption(memory, memory.device, said[Tier.DEVICE], identify)
    host = _Adoption(memory, memory.host, said[Tier.HOST], identify)
    known = device.blocks | host.blocks
    contents: dict[bytes, Content] = {}
    for identity in _parents_first(known, known):
        content = _content(known[identity], contents)
        if content is not None:
            contents[identity] = content
            device.register(content)
            host.register(content)
    # What goes on from a block counts as unused for longer: tails are evicted before heads.
    for identity in reversed(_parents_first(reversed(known), known)):
        if identity in contents:
            device.cache(identity)
            host.cache(identity)
    device.disown_others()
    host.disown_others()


class _Adoption:
    """What is taken over in one tier.

    Attributes:
        blocks: those that are sound, one for each identity.
    """

    def __init__(self, memory: Memory, tier: MemoryTier, stored: list[StoredBlock], identify: Identify) -> None:
        self._memory = memory
        self._tier = tier
        self._places: dict[int, StoredBlock | None] = {}
        for block in stored:
            if 0 <= block.block_id < tier.pool.num_blocks:
                place = block.block_id  # where two things are said of it, they can't both be true
                self._places[place] = None if place in self._places else block
        self.blocks: dict[bytes, StoredBlock] = {}
        for candidate in self._places.values():
            if candidate is not None and memory.prefix_caching and _is_sound(candidate, memory.block_size, identify):
                self.blocks.setdefault(candidate.identity, candidate)

    def register(self, content: Content) -> None:
        """What has this content can be found by it."""
        block = self.blocks.get(content.identity)
        if block is not None:
            self._tier.cache.adopt(self._tier.pool.blocks[block.block_id], content)

    def cache(self, identity: bytes) -> None:
        """What has this content is unreferenced, and was used after all before it."""
        block, pool = self.blocks.get(identity), self._tier.pool
        if block is not None:
            pool.adopt(pool.blocks[block.block_id], pool.accounts[block.scope.owner])

    def disown_others(self) -> None:
        """Says which blocks nobody will ask for, though the executor has something to say of them."""
        for place in self._places:
            block = self._tier.pool.blocks[place]
            if block.content is None:
                self._memory.untold.disowned(block)


def _is_sound(block: StoredBlock, block_size: int, identify: Identify) -> bool:
    """The block is full, and has the name that its content gives it."""
    if len(block.tokens) != block_size * TOKEN_BYTES:
        return False
    return block.identity == identify(block.parent, block.tokens, block.scope.salt)


def _parents_first(identities: Iterable[bytes], known: Blocks) -> list[bytes]:
    """As they come, but each after the one that it goes on from, if that is there."""
    ordered: list[bytes] = []
    seen: set[bytes] = set()
    for identity in identities:
        chain = []
        while identity in known and identity not in seen:
            seen.add(identity)
            chain.append(identity)
            identity = known[identity].parent
        ordered += reversed(chain)
    return ordered


def _content(block: StoredBlock, before: Mapping[bytes, Content]) -> Content | None:
    """What the block holds; None if its prefix is not there. Likenesses differ from process to process."""
    parent = before.get(block.parent)
    if parent is None and block.parent != ROOT:
        return None
    likeness = likeness_after(parent.likeness if parent else 0, block.tokens)
    return Content(block.identity, block.parent, block.tokens, block.scope, likeness)
