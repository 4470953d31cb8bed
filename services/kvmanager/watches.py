"""What others may watch: the memory map as it changes, and KV events.

Both look at intervals instead of being told, so that a step costs the same whoever watches, and whoever reads slowly is
sent less often, not more at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc

from kvmanager.cached_blocks import cached_blocks, parents_first
from kvmanager.kv_events import KVEventLog
from kvmanager.manager import KVManager
from kvmanager.memory_watch import MemoryWatch
from octavo.v1 import kvmanager_pb2
from services.kvmanager.views_codec import encode_cached_blocks, encode_changes, encode_kv_events
from services.rpc.status import RpcError

EVENTS_SECONDS = 0.02


async def watch_memory(manager: KVManager, interval: float) -> AsyncIterator[kvmanager_pb2.WatchMemoryResponse]:
    """All blocks, then those that have changed, at most once in so many seconds."""
    watch = MemoryWatch(manager)
    try:
        while True:
            for changes in watch.changes():
                for message in encode_changes(changes):
                    yield message
            await asyncio.sleep(interval)
    finally:
        watch.close()


def first_event(log: KVEventLog, from_sequence_number: int) -> int:
    """The number of the first event that a subscriber wants.

    Raises:
        RpcError: OUT_OF_RANGE: there has been no such event yet. Numbers start anew with the process, so waiting for
            this one would mean to miss all before it.
    """
    following = log.last_number + 1
    if from_sequence_number > following:
        message = f"from_sequence_number: is {from_sequence_number}; the next event is {following}"
        raise RpcError(grpc.StatusCode.OUT_OF_RANGE, message, "NO_SUCH_EVENT", "from_sequence_number")
    return from_sequence_number or following


async def kv_events(log: KVEventLog, number: int) -> AsyncIterator[kvmanager_pb2.SubscribeKvEventsResponse]:
    """Events from this number on, as far as they are kept when their turn comes."""
    while True:
        first, events = log.since(number)
        for message in encode_kv_events(first, events):
            yield message
        if events:
            number = first + len(events)
        await asyncio.sleep(EVENTS_SECONDS)


async def cached_blocks_and_events(manager: KVManager) -> AsyncIterator[kvmanager_pb2.SubscribeKvEventsResponse]:
    """What the caches hold now, then events from the next one on."""
    blocks, number = cached_blocks(manager), manager.kv_events.last_number + 1
    # There may be very many of them, and steps go on meanwhile.
    for message in encode_cached_blocks(number, await asyncio.to_thread(parents_first, blocks)):
        yield message
    async for message in kv_events(manager.kv_events, number):
        yield message
