"""KV events of all groups as the protocol tells them: one engine's, in numbered batches."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from smg_grpc_proto.generated import common_pb2 as vllm

from octavo.v1 import common_pb2, kvmanager_pb2
from services.gateway.kv_events import Told
from services.rpc.columns import unpack_int32

MAX_REMOVED_BLOCKS = 8192
"""In one batch."""

_TIERS = {
    common_pb2.TIER_DEVICE: vllm.KV_CACHE_TIER_DEVICE,
    common_pb2.TIER_HOST: vllm.KV_CACHE_TIER_HOST,
}
_LEVELS = {vllm.KV_CACHE_TIER_DEVICE: 0, vllm.KV_CACHE_TIER_HOST: 1}
"""What older readers look at."""

Executor: TypeAlias = "tuple[int, str]"
Copy: TypeAlias = "tuple[int, int]"
"""Of a block: its tier and hash."""


def block_hash(identity: bytes) -> int:
    """A block's identity as the protocol's number: its first 8 bytes."""
    return int.from_bytes(identity[:8], "big", signed=True)


class EventStream:
    """What one subscriber is told.

    The protocol knows one engine with one cache. Here there may be many, and where one of them is lost, what the others
    hold stays: so it is kept what each of them has, and only that is removed.
    """

    def __init__(self) -> None:
        self._held: dict[Executor, set[Copy]] = {}
        self._sequence_number = 0
        self._event_id = 0

    def start(self) -> vllm.KvEventBatch:
        """The first batch: whatever the subscriber knew is void."""
        return self._batch([vllm.KvCacheEvent(cleared=vllm.KvCacheCleared())])

    def add(self, told: Told) -> Iterator[vllm.KvEventBatch]:
        """The batches that tell of it; none where the subscriber learns nothing from it."""
        if told.message is None:
            for executor in [each for each in self._held if each[0] == told.group]:
                yield from self._clear(executor)
            return
        events: list[vllm.KvCacheEvent] = []
        executor = told.group, told.message.executor
        for event in told.message.events:
            kind = event.WhichOneof("event")
            if kind == "stored":
                self._store(executor, event.stored, events)
            elif kind == "removed":
                self._remove(executor, event.removed, events)
            else:
                if events:
                    yield self._batch(events)
                    events = []
                yield from self._clear(executor)
        if events:
            yield self._batch(events)

    def _store(self, executor: Executor, stored: kvmanager_pb2.BlockStored, events: list[vllm.KvCacheEvent]) -> None:
        """Adds an event, or adds the block to the last one where it continues that one's chain."""
        tier, parent = _TIERS[stored.tier], block_hash(stored.parent_identity)
        token_ids = unpack_int32(stored.token_ids)
        block = vllm.KvBlock(
            block_hash=block_hash(stored.identity),
            token_ids=token_ids,
            block_size=len(token_ids),
            cache_level=_LEVELS[tier],
        )
        self._held.setdefault(executor, set()).add((tier, block.block_hash))
        last = events[-1].stored if events and events[-1].HasField("stored") else None
        if last is not None and last.tier == tier and stored.parent_identity and last.blocks[-1].block_hash == parent:
            last.blocks.append(block)
            return
        parent_hash = parent if stored.parent_identity else None
        chain = vllm.KvBlocksStored(blocks=[block], parent_block_hash=parent_hash, tier=tier)
        events.append(vllm.KvCacheEvent(stored=chain))

    def _remove(self, executor: Executor, removed: kvmanager_pb2.BlockRemoved, events: list[vllm.KvCacheEvent]) -> None:
        copy = _TIERS[removed.tier], block_hash(removed.identity)
        held = self._held.get(executor, set())
        if copy in held:
            held.remove(copy)
            events.append(_removed(*copy))

    def _clear(self, executor: Executor) -> Iterator[vllm.KvEventBatch]:
        """An executor's blocks are gone."""
        copies = sorted(self._held.pop(executor, set()))
        if not any(self._held.values()):
            if copies:
                yield self._batch([vllm.KvCacheEvent(cleared=vllm.KvCacheCleared())])
            return
        for start in range(0, len(copies), MAX_REMOVED_BLOCKS):
            yield self._batch([_removed(*copy) for copy in copies[start : start + MAX_REMOVED_BLOCKS]])

    def _batch(self, events: Sequence[vllm.KvCacheEvent]) -> vllm.KvEventBatch:
        self._sequence_number += 1
        for event in events:
            self._event_id += 1
            event.event_id = self._event_id
        return vllm.KvEventBatch(sequence_number=self._sequence_number, timestamp=time.time(), events=events)


def _removed(tier: int, *hashes: int) -> vllm.KvCacheEvent:
    removed = vllm.KvBlocksRemoved(block_hashes=hashes, tier=tier, cache_level=_LEVELS[tier])
    return vllm.KvCacheEvent(removed=removed)
