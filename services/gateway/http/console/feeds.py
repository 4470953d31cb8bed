"""What the page is told as it happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta

from google.protobuf.duration_pb2 import Duration

from octavo.v1 import monitoring_pb2
from services.gateway.http.console.block_json import BlockEncoder, TableEncoder
from services.gateway.http.console.event_stream import encode_event, merged
from services.gateway.http.console.status_json import encode_status
from services.gateway.monitoring.monitoring import Monitoring
from services.gateway.viewers import Viewer

STATUS_SECONDS = 1.0
BLOCKS_SECONDS = 0.4
TABLES_SECONDS = 1.0
HEARTBEAT_SECONDS = 5.0
"""So often the page hears that the stream is alive where nothing happens."""


async def status_events(monitoring: Monitoring, viewer: Viewer) -> AsyncGenerator[bytes, None]:
    """`status` events: at once with what was, then each second."""
    request = monitoring_pb2.WatchStatusRequest(interval=_duration(STATUS_SECONDS))
    async for message in monitoring.watch_status(request, viewer):
        yield encode_event("status", encode_status(message, viewer.tenant))


async def block_events(monitoring: Monitoring, viewer: Viewer) -> AsyncGenerator[bytes, None]:
    """`blocks` events with the physical map and its changes, `tables` events with who holds them."""
    feeds = _blocks(monitoring, viewer), _tables(monitoring, viewer), heartbeat()
    async for event in merged(*feeds):
        yield event


async def _blocks(monitoring: Monitoring, viewer: Viewer) -> AsyncGenerator[bytes, None]:
    encoder = BlockEncoder()
    request = monitoring_pb2.WatchBlocksRequest(interval=_duration(BLOCKS_SECONDS))
    async for message in monitoring.watch_blocks(request, viewer):
        yield encode_event("blocks", encoder.encode(message))


async def _tables(monitoring: Monitoring, viewer: Viewer) -> AsyncGenerator[bytes, None]:
    encoder = TableEncoder()
    request = monitoring_pb2.ListRequestsRequest(include_blocks=True)
    while True:
        change = encoder.encode(await monitoring.list_requests(request, viewer))
        if change is not None:
            yield encode_event("tables", change)
        await asyncio.sleep(TABLES_SECONDS)


async def heartbeat() -> AsyncGenerator[bytes, None]:
    """Comments, which say nothing but that somebody is there."""
    while True:
        yield b": still here\n\n"
        await asyncio.sleep(HEARTBEAT_SECONDS)


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromTimedelta(timedelta(seconds=seconds))
    return duration
