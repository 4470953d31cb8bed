"""What the prefix caches hold now, told as the events that would have led there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from kvmanager.kv_events import BlockStored, Tier
from kvmanager.manager import KVManager


def cached_blocks(manager: KVManager) -> list[BlockStored]:
    """Every block that is given out, on every executor and tier, in no particular order."""
    return [
        BlockStored(name, tier, content.identity, content.parent, content.tokens)
        for name, replica in manager.replicas.items()
        for tier, cache in (
            (Tier.DEVICE, replica.memory.device.cache),
            (Tier.HOST, replica.memory.host.cache),
        )
        for content in cache.contents()
    ]


def parents_first(blocks: Sequence[BlockStored]) -> list[BlockStored]:
    """The blocks of one executor after another's, each after the one before it in its chain, if that is there."""
    following: defaultdict[tuple[str, bytes], list[BlockStored]] = defaultdict(list)
    for block in blocks:
        following[block.executor, block.parent].append(block)
    known = {(block.executor, block.identity) for block in blocks}
    pending = [block for block in reversed(blocks) if (block.executor, block.parent) not in known]
    ordered = []
    while pending:
        block = pending.pop()
        ordered.append(block)
        # Taken out: a block that is in both tiers is followed once.
        pending += following.pop((block.executor, block.identity), ())
    return ordered
