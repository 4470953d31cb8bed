"""What others see of a KV manager's memory: the map, and the KV events."""

from __future__ import annotations

from kvmanager.manager import KVManager
from kvmanager.memory_watch import MemoryWatch
from kvmanager.views import BlockView, block_views
from tests.kvmanager.kv_mirror import KVMirror


class Observer:
    """Follows both, and compares them with what is really there."""

    def __init__(self, manager: KVManager) -> None:
        self._manager = manager
        self._watch = MemoryWatch(manager)
        self._mirror = KVMirror(manager)
        self._map: dict[str, dict[object, BlockView]] = {}

    def check(self) -> None:
        """What was told so far is what is."""
        self._mirror.check()
        self._check_map()

    def _check_map(self) -> None:
        """A map made of nothing but the changes is the real one."""
        for change in self._watch.changes():
            if change.removed:
                del self._map[change.executor]
                continue
            if change.snapshot:
                self._map[change.executor] = {}
            blocks = self._map[change.executor]
            blocks.update({(block.tier, block.block_id): block for block in change.blocks})
        assert self._map.keys() == self._manager.replicas.keys()
        for name, replica in self._manager.replicas.items():
            assert list(self._map[name].values()) == block_views(replica)

    def close(self) -> None:
        """Nobody looks any more, and nobody keeps note."""
        self._watch.close()
        assert not any(replica.memory.pool.journals for replica in self._manager.replicas.values())
