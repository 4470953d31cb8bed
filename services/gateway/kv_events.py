"""What enters and leaves the prefix caches of all groups, as their KV managers tell it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from octavo.v1 import kvmanager_pb2, kvmanager_pb2_grpc
from services.gateway.attachment import Attachment, describe
from services.gateway.kvmanager_link import KVManagerLink

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.05
"""Between a subscription that broke off and the next one."""


@dataclass(frozen=True, slots=True)
class Told:
    """Something about one group's caches.

    Attributes:
        group: Its place in the list of groups.
        message: Events. None: what was told of the group is void; what its caches hold now follows.
    """

    group: int
    message: kvmanager_pb2.SubscribeKvEventsResponse | None


async def kv_events(links: Sequence[KVManagerLink]) -> AsyncGenerator[Told, None]:
    """What each group's caches hold now, as events, and then what happens, for ever.

    A group whose KV manager is away is told of once it is there. Where its KV manager changes, or events were missed,
    everything about it is void and is told anew.
    """
    mailbox: asyncio.Queue[Told] = asyncio.Queue(maxsize=1)
    following = asyncio.gather(*(_follow(group, link, mailbox.put) for group, link in enumerate(links)))
    tasks: list[asyncio.Future[Any]] = [following]
    try:
        while True:
            tasks = [following, asyncio.ensure_future(mailbox.get())]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()  # raises: it never ends by itself
            yield tasks[1].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _follow(group: int, link: KVManagerLink, put: Callable[[Told], Awaitable[None]]) -> None:
    while True:
        attachment, channel = await link.leader()
        tasks = [asyncio.ensure_future(each) for each in (_read(group, channel, put), _wait_for_loss(attachment))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            reason = done.pop().result()
        except grpc.aio.AioRpcError as error:
            reason = describe(error)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await channel.close(None)
        log.info("KV events broke off", extra={"address": attachment.address, "reason": reason})
        await put(Told(group, None))
        await asyncio.sleep(_PAUSE_SECONDS)


async def _read(group: int, channel: grpc.aio.Channel, put: Callable[[Told], Awaitable[None]]) -> str:
    """Hands on what one KV manager tells. Returns why it is no more to be believed."""
    stub = kvmanager_pb2_grpc.KVManagerServiceStub(channel)
    following = None
    async for message in stub.SubscribeKvEvents(kvmanager_pb2.SubscribeKvEventsRequest(current_blocks_first=True)):
        if following not in (None, message.sequence_number):
            return f"events from {following} to {message.sequence_number - 1} are missing"
        following = message.sequence_number + (0 if message.cached_before else len(message.events))
        await put(Told(group, message))
    return "the KV manager ended the stream"


async def _wait_for_loss(attachment: Attachment) -> str:
    await attachment.over.wait()
    return "the KV manager was lost"
