"""Server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from starlette.responses import StreamingResponse

from services.rpc.status import RpcError

HEADERS = {
    "cache-control": "no-store",
    "vary": "authorization",
    "x-accel-buffering": "no",  # a proxy is not to collect events
    "x-content-type-options": "nosniff",
}

T = TypeVar("T")


def encode_event(name: str, data: Any) -> bytes:
    """One event, its data as JSON: that has no line breaks."""
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


async def stream(events: AsyncGenerator[bytes, None]) -> StreamingResponse:
    """An answer that goes on. The first event decides whether it begins.

    Raises:
        RpcError: there is no first event.
    """
    first = await anext(events)
    return StreamingResponse(_rest(first, events), media_type="text/event-stream", headers=HEADERS)


async def _rest(first: bytes, events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """What fails later ends the stream; whoever still looks asks again, and is told why."""
    yield first
    with suppress(RpcError):
        async for event in events:
            yield event


async def merged(*sources: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """What several sources give, as it comes and as fast as it is taken. Ends with the first that ends or fails."""
    queue: asyncio.Queue[T] = asyncio.Queue(maxsize=1)
    tasks = {asyncio.ensure_future(_pour(source, queue)) for source in sources}
    taking: asyncio.Task[T] | None = None
    try:
        while True:
            taking = taking or asyncio.ensure_future(queue.get())
            done, _ = await asyncio.wait({taking, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            if taking in done:
                yield taking.result()
                taking = None
                continue
            for task in done:
                task.result()
            return
    finally:
        left = [*tasks, *([taking] if taking else [])]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def _pour(source: AsyncGenerator[T, None], queue: asyncio.Queue[T]) -> None:
    async with aclosing(source):
        async for item in source:
            await queue.put(item)
