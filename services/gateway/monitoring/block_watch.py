"""What one who watches blocks has still to hear."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from octavo.v1 import memory_pb2, monitoring_pb2
from services.gateway.monitoring.block_map import BlockKey, BlockMap, ExecutorBlocks

MESSAGE_BLOCKS = 4096
"""Most blocks in one message."""


class BlockWatch:
    """Collects what has changed until it is sent.

    A tenant sees its own blocks, and what is cached in shared namespaces that it has joined, but not whether others
    use that. It hears of a block only if what it sees of it has changed: when others' blocks change is not told.

    Args:
        owners: Whose blocks are shown, the tenant itself first; None: everybody's. Asked again for each look.
    """

    def __init__(self, block_map: BlockMap, owners: Callable[[], Sequence[str] | None]) -> None:
        self._map = block_map
        self._owners_now = owners
        self._owners = owners()
        self._started: dict[str, None] = {}
        self._gone: dict[str, None] = {}
        self._changed: dict[str, dict[BlockKey, None]] = {}
        self._shown: dict[str, dict[BlockKey, memory_pb2.Block]] = {}
        """What a tenant has been shown of each executor, but for blocks that it sees as free."""

    # What the map tells

    def started(self, executor: str) -> None:
        self._gone.pop(executor, None)
        self._started[executor] = None
        self._changed[executor] = {}

    def changed(self, executor: str, keys: Sequence[BlockKey]) -> None:
        self._changed[executor].update(dict.fromkeys(keys))

    def gone(self, executor: str) -> None:
        del self._changed[executor]
        # Who has not heard of it need not hear that it is gone.
        if executor in self._shown:
            self._gone[executor] = None
        self._started.pop(executor, None)

    # What is sent

    def messages(self) -> Iterator[monitoring_pb2.WatchBlocksResponse]:
        """All that has changed until now. Each message is made when it is asked for: others get their turn between."""
        self._look_at_owners()
        for executor in list(self._gone):
            del self._gone[executor]
            del self._shown[executor]
            yield monitoring_pb2.WatchBlocksResponse(executor=executor, removed=True)
        for executor in list(self._changed):
            while message := self._next(executor):
                yield message

    def _look_at_owners(self) -> None:
        """Those who join a namespace, or leave it, see other blocks from then on."""
        owners = self._owners_now()
        if owners != self._owners:
            self._owners = owners
            for executor, known in self._map.executors.items():
                self.changed(executor, list(known.blocks))

    def _next(self, executor: str) -> monitoring_pb2.WatchBlocksResponse | None:
        """The next message about an executor; None where there is nothing more to say, or it has gone meanwhile."""
        known = self._map.executors.get(executor)
        if known is None or executor not in self._changed:
            return None
        snapshot = executor in self._started
        if snapshot:
            del self._started[executor]
            self._shown[executor] = {}
        while snapshot or self._changed[executor]:
            blocks = self._some_blocks(executor, known, snapshot)
            if snapshot or blocks:
                return monitoring_pb2.WatchBlocksResponse(
                    executor=executor,
                    snapshot=snapshot,
                    num_device_blocks=known.num_device_blocks,
                    num_host_blocks=known.num_host_blocks,
                    blocks=blocks,
                )
        return None

    def _some_blocks(self, executor: str, known: ExecutorBlocks, snapshot: bool) -> list[memory_pb2.Block]:
        changed = self._changed[executor]
        keys = list(islice(changed, MESSAGE_BLOCKS))
        for key in keys:
            del changed[key]
        if self._owners is None:
            return [known.blocks[key] for key in keys]
        return self._seen_anew(executor, [known.blocks[key] for key in keys], self._owners)

    def _seen_anew(
        self, executor: str, blocks: Sequence[memory_pb2.Block], owners: Sequence[str]
    ) -> list[memory_pb2.Block]:
        shown, anew = self._shown[executor], []
        for block in blocks:
            key = block.tier, block.block_id
            seen = _as_seen(block, owners)
            if seen == shown.get(key):
                continue
            if seen is None:
                del shown[key]
            else:
                shown[key] = seen
            anew.append(seen or memory_pb2.Block(block_id=block.block_id, tier=block.tier))
        return anew


def _as_seen(block: memory_pb2.Block, owners: Sequence[str]) -> memory_pb2.Block | None:
    """A block as a tenant sees it; None: as a free one."""
    if not block.owner or block.owner not in owners:
        return None
    if block.owner == owners[0]:
        return block
    if not block.cached:
        return None  # somebody is filling it
    seen = memory_pb2.Block()
    seen.CopyFrom(block)
    seen.reference_count = 0
    return seen
