"""One tier of memory: its blocks, and what they can be found by."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvmanager.accounts import Quota
from kvmanager.block import Block
from kvmanager.block_pool import BlockPool
from kvmanager.content import Content
from kvmanager.kv_events import KVEventLog, Tier
from kvmanager.prefix_cache import PrefixCache
from kvmanager.untold import UntoldContents

MIN_REMEMBERED = 1024


class MemoryTier:
    """A pool and the prefix cache over it.

    Attributes:
        before_evict: called with a cached block before it is forgotten.
    """

    def __init__(
        self,
        executor: str,
        tier: Tier,
        num_blocks: int,
        quotas: Mapping[str, Quota],
        log: KVEventLog,
        untold: UntoldContents,
    ) -> None:
        self.before_evict: Callable[[Block], None] = lambda block: None
        self.cache = PrefixCache(executor, tier, log, untold, max(num_blocks, MIN_REMEMBERED))
        self.pool = BlockPool(num_blocks, self._evict, quotas, on_host=tier is Tier.HOST)

    def register(self, block: Block, content: Content, written_step: int) -> bool:
        """Makes a full block available to others; False where another one is given out already."""
        registered = self.cache.register(block, content, written_step)
        if registered and self.pool.journals:
            self.pool.note(block)
        return registered

    def _evict(self, block: Block) -> None:
        self.before_evict(block)
        self.cache.evict(block)

    def check_integrity(self) -> None:
        """Asserts that pool and cache agree."""
        pool = self.pool
        assert pool.num_free + pool.num_cached + pool.num_referenced == pool.num_blocks
        pool.check_integrity()
        self.cache.check_integrity(pool.blocks)
