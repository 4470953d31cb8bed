"""The physical map as it changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvmanager.kv_events import Tier
from kvmanager.manager import KVManager
from kvmanager.replica import Replica
from kvmanager.views import BlockView, Fills, block_view

PIECE_BLOCKS = 500
"""Most blocks in one piece of what has changed: a few milliseconds' work."""


@dataclass(frozen=True, slots=True)
class MemoryChanges:
    """A piece of what has changed on one executor since the last look.

    Attributes:
        snapshot: the first piece of all of its blocks; whatever was known before is void.
        removed: it is gone.
    """

    executor: str
    snapshot: bool
    num_device_blocks: int
    num_host_blocks: int
    blocks: list[BlockView]
    removed: bool = False


class MemoryWatch:
    """Follows all executors. While one is open, pools keep note of the blocks that change."""

    def __init__(self, manager: KVManager) -> None:
        self._manager = manager
        self._followed: dict[str, _Followed] = {}

    def changes(self) -> Iterator[MemoryChanges]:
        """What has changed since the last call, for each executor with a change; at first, everything.

        Each piece is made when it is asked for: steps may go on between, and what changes then is told later.
        """
        replicas = self._manager.replicas
        for name in [name for name in self._followed if name not in replicas]:
            self._followed.pop(name).close()
            yield MemoryChanges(name, False, 0, 0, [], removed=True)
        for name, replica in list(replicas.items()):
            followed = self._followed.get(name)
            if followed is None or followed.replica is not replica:
                if followed is not None:
                    followed.close()
                followed = self._followed[name] = _Followed(name, replica)
                pieces = followed.everything()
            else:
                pieces = followed.changes()
            for piece in pieces:
                yield piece
                if self._followed.get(name) is not followed or replicas.get(name) is not replica:
                    break  # closed, or lost meanwhile

    def close(self) -> None:
        """Ends the note-taking."""
        for followed in self._followed.values():
            followed.close()
        self._followed.clear()


class _Followed:
    """One executor, and what was told of its blocks."""

    def __init__(self, name: str, replica: Replica) -> None:
        self.replica = replica
        self._name = name
        self._pools = {Tier.DEVICE: replica.memory.device.pool, Tier.HOST: replica.memory.host.pool}
        self._journals: dict[Tier, set[int]] = {tier: set() for tier in Tier}
        self._partial: dict[Tier, set[int]] = {tier: set() for tier in Tier}
        self._told: dict[Tier, list[BlockView]] = {tier: [] for tier in Tier}
        for tier, pool in self._pools.items():
            pool.journals.append(self._journals[tier])

    def close(self) -> None:
        """Its pools take no more notes."""
        for tier, pool in self._pools.items():
            pool.journals[:] = [each for each in pool.journals if each is not self._journals[tier]]

    def everything(self) -> Iterator[MemoryChanges]:
        """All blocks, those of the device by id, then those of the host."""
        snapshot = True
        for tier, pool in self._pools.items():
            told = self._told[tier]
            for first in range(0, pool.num_blocks, PIECE_BLOCKS):
                fills = Fills(self.replica)
                self._partial[tier] |= fills.partial(tier)
                views = [block_view(block, tier, fills) for block in pool.blocks[first : first + PIECE_BLOCKS]]
                told += views
                yield self._piece(views, snapshot)
                snapshot = False

    def changes(self) -> Iterator[MemoryChanges]:
        """Blocks that are not what was told of them."""
        changed: list[BlockView] = []
        fills = Fills(self.replica)
        for tier, pool in self._pools.items():
            told, partial = self._told[tier], fills.partial(tier)
            looked_at = self._journals[tier] | partial | self._partial[tier]
            self._partial[tier] = partial
            self._journals[tier].clear()
            for block_id in sorted(looked_at):
                view = block_view(pool.blocks[block_id], tier, fills)
                if told[block_id] != view:
                    told[block_id] = view
                    changed.append(view)
        for first in range(0, len(changed), PIECE_BLOCKS):
            yield self._piece(changed[first : first + PIECE_BLOCKS], False)

    def _piece(self, views: list[BlockView], snapshot: bool) -> MemoryChanges:
        memory = self.replica.memory
        return MemoryChanges(self._name, snapshot, memory.device.pool.num_blocks, memory.host.pool.num_blocks, views)
