"""KV events of all groups as the protocol tells them: one engine's, in numbered batches."""

from __future__ import annotations

import time
from collections.abc import Iterator
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
        batch = vllm.KvEventBatch()
        self._event(batch).cleared.SetInParent()
        return self._numbered(batch)

    def add(self, told: Told) -> Iterator[vllm.KvEventBatch]:
        """The batches that tell of it; none where the subscriber learns nothing from it."""
        if told.message is None:
            for executor in [each for each in self._held if each[0] == told.group]:
                yield from self._clear(executor)
            return
        executor = told.group, told.message.executor
        batch = vllm.KvEventBatch()
        for event in told.message.events:
            kind = event.WhichOneof("event")
            if kind == "stored":
                self._store(executor, event.stored, batch)
            elif kind == "removed":
                self._remove(executor, event.removed, batch)
            else:
                if batch.events:
                    yield self._numbered(batch)
                    batch = vllm.KvEventBatch()
                yield from self._clear(executor)
        if batch.events:
            yield self._numbered(batch)

    def _store(self, executor: Executor, stored: kvmanager_pb2.BlockStored, batch: vllm.KvEventBatch) -> None:
        """Adds an event, or adds the block to the last one where it continues that one's chain."""
        tier, identity = _TIERS[stored.tier], block_hash(stored.identity)
        self._held.setdefault(executor, set()).add((tier, identity))
        # One that is of another kind has no tier.
        chain = batch.events[-1].stored if batch.events else None
        parent = block_hash(stored.parent_identity) if stored.parent_identity else None
        if chain is None or chain.tier != tier or parent is None or chain.blocks[-1].block_hash != parent:
            chain = self._event(batch).stored
            chain.tier = tier
            if parent is not None:
                chain.parent_block_hash = parent
        token_ids = unpack_int32(stored.token_ids)
        chain.blocks.add(block_hash=identity, token_ids=token_ids, block_size=len(token_ids), cache_level=_LEVELS[tier])

    def _remove(self, executor: Executor, removed: kvmanager_pb2.BlockRemoved, batch: vllm.KvEventBatch) -> None:
        copy = _TIERS[removed.tier], block_hash(removed.identity)
        held = self._held.get(executor, set())
        if copy in held:
            held.remove(copy)
            self._add_removal(batch, copy)

    def _clear(self, executor: Executor) -> Iterator[vllm.KvEventBatch]:
        """An executor's blocks are gone."""
        copies = sorted(self._held.pop(executor, set()))
        if copies and not any(self._held.values()):
            yield self.start()
            return
        for start in range(0, len(copies), MAX_REMOVED_BLOCKS):
            batch = vllm.KvEventBatch()
            for copy in copies[start : start + MAX_REMOVED_BLOCKS]:
                self._add_removal(batch, copy)
            yield self._numbered(batch)

    def _add_removal(self, batch: vllm.KvEventBatch, copy: Copy) -> None:
        """Adds an event, or adds the block to the last one where that removes from the same tier."""
        tier, identity = copy
        removal = batch.events[-1].removed if batch.events else None
        if removal is None or removal.tier != tier:
            removal = self._event(batch).removed
            removal.tier, removal.cache_level = tier, _LEVELS[tier]
        removal.block_hashes.append(identity)

    def _event(self, batch: vllm.KvEventBatch) -> vllm.KvCacheEvent:
        self._event_id += 1
        return batch.events.add(event_id=self._event_id)

    def _numbered(self, batch: vllm.KvEventBatch) -> vllm.KvEventBatch:
        self._sequence_number += 1
        batch.sequence_number, batch.timestamp = self._sequence_number, time.time()
        return batch
