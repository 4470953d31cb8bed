"""What a router outside knows of the prefix caches: nothing but the KV events."""

from __future__ import annotations

from kvmanager.kv_events import AllBlocksCleared, BlockStored, Tier
from kvmanager.manager import KVManager


class KVMirror:
    """Follows a KV manager's events, and compares what they say with what its memory holds."""

    def __init__(self, manager: KVManager) -> None:
        self._manager = manager
        self._next = 1
        self._stored: dict[tuple[str, Tier], dict[bytes, BlockStored]] = {}

    def check(self) -> None:
        """Reads on; asserts that no number is missing, that each event makes sense, and that the caches are as told."""
        first, events = self._manager.kv_events.since(self._next)
        assert first == self._next, "events are missing"
        self._next += len(events)
        assert self._next == self._manager.kv_events.last_number + 1
        for event in events:
            if isinstance(event, AllBlocksCleared):
                for tier in Tier:
                    self._stored.pop((event.executor, tier), None)
                continue
            place = self._stored.setdefault((event.executor, event.tier), {})
            if isinstance(event, BlockStored):
                assert event.identity not in place, "stored twice"
                place[event.identity] = event
            else:
                assert event.identity in place, "removed, but never stored"
                del place[event.identity]
        self._compare()

    def _compare(self) -> None:
        held = {}
        for name, replica in self._manager.replicas.items():
            for tier, memory in ((Tier.DEVICE, replica.memory.device), (Tier.HOST, replica.memory.host)):
                contents = [block.content for block in memory.pool.blocks if block.content is not None]
                if contents:
                    held[name, tier] = {each.identity: (each.parent, each.tokens) for each in contents}
        told = {
            place: {event.identity: (event.parent, event.tokens) for event in stored.values()}
            for place, stored in self._stored.items()
            if stored
        }
        assert told == held, "what is cached is not what was told"
