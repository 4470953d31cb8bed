"""One stream to one KV manager, from its first message to its loss."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import grpc

from octavo.v1 import kvmanager_pb2, kvmanager_pb2_grpc
from services.rpc.channel import Connect

Stream: TypeAlias = "grpc.aio.StreamStreamCall[kvmanager_pb2.AttachRequest, kvmanager_pb2.AttachResponse]"

_LONG_MESSAGE_BYTES = 1 << 20
"""What is longer is sent without more."""

_TICK_SECONDS = 0.25
_SILENT_TICKS = 8
"""A KV manager says something every half second. One that is silent for so many ticks of our own clock is lost to us:
it hangs, or the network has swallowed the connection. Ticks are counted, not seconds: if this process was held still
itself, that is one tick, and what came meanwhile is read in the next."""

_RETRY_SECONDS = 0.15


class Attachment:
    """A KV manager that has taken this gateway in.

    Attributes:
        first: What it said first.
        stub: For questions to it.
        over: Set when this gateway has let go of it.
    """

    def __init__(
        self, address: str, channel: grpc.aio.Channel, call: Stream, first: kvmanager_pb2.AttachResponse
    ) -> None:
        self.address = address
        self.first = first
        self.over = asyncio.Event()
        self.stub: Any = kvmanager_pb2_grpc.KVManagerServiceStub(channel)
        self._channel = channel
        self._call = call
        self._outbox: asyncio.Queue[kvmanager_pb2.AttachRequest] = asyncio.Queue()
        self._heard = True

    @classmethod
    async def open(cls, address: str, connect: Connect) -> Attachment:
        """Attaches.

        Raises:
            AioRpcError: it can't be reached, or does not take gateways in.
            ConnectionError: it ended the stream without a word.
        """
        channel = connect(address)
        try:
            call = kvmanager_pb2_grpc.KVManagerServiceStub(channel).Attach()
            first = await call.read()
            if not isinstance(first, kvmanager_pb2.AttachResponse):
                raise ConnectionError("the KV manager ended the stream")
            return cls(address, channel, call, first)
        except BaseException:
            await channel.close(None)
            raise

    def send(self, message: kvmanager_pb2.AttachRequest) -> None:
        """Puts a message on its way."""
        self._outbox.put_nowait(message)

    async def serve(self, take: Callable[[kvmanager_pb2.AttachResponse], None]) -> str:
        """Hands over what comes, and sends what is to be sent, until the stream breaks. Returns why it did.

        Raises:
            ValueError: a message makes no sense.
            LookupError: likewise.
        """
        tasks = [asyncio.ensure_future(each) for each in (self._read(take), self._write(), self._watch())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return next(task for task in tasks if task in done).result()
        except grpc.aio.AioRpcError as error:
            return describe(error)
        except asyncio.InvalidStateError:
            return "the stream is closed"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, take: Callable[[kvmanager_pb2.AttachResponse], None]) -> str:
        while isinstance(message := await self._call.read(), kvmanager_pb2.AttachResponse):
            self._heard = True
            take(message)
        return "the KV manager ended the stream"

    async def _write(self) -> str:
        """Requests that arrive while one is being sent go together."""
        while True:
            message = await self._outbox.get()
            while not self._outbox.empty() and message.ByteSize() < _LONG_MESSAGE_BYTES:
                message.MergeFrom(self._outbox.get_nowait())
            await self._call.write(message)

    async def _watch(self) -> str:
        silent_ticks = 0
        while silent_ticks < _SILENT_TICKS:
            self._heard = False
            await asyncio.sleep(_TICK_SECONDS)
            silent_ticks = 0 if self._heard else silent_ticks + 1
        return f"nothing was heard for {_SILENT_TICKS * _TICK_SECONDS:g} s"

    async def close(self) -> None:
        """Lets go of it, and of what was on its way."""
        self.over.set()
        self._call.cancel()
        await self._channel.close(None)


async def attach_to_first(
    addresses: Sequence[str], connect: Connect, seconds: float, failed: Callable[[str, str], None]
) -> Attachment | None:
    """Attaches to whichever KV manager takes this gateway in first; all are tried at once, again and again.

    So one that hangs does not stand in the way of one that has taken over from it.

    Args:
        addresses: Perhaps none, while no name is known.
        connect: Reaches them.
        seconds: After which to give up.
        failed: Told of each attempt that fails: the address, and why.
    """
    if not addresses:
        await asyncio.sleep(_RETRY_SECONDS)
        return None
    over = asyncio.Event()
    attempts = [asyncio.ensure_future(_keep_trying(address, connect, failed, over)) for address in addresses]
    chosen: Attachment | None = None
    try:
        done, _ = await asyncio.wait(attempts, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if done:
            chosen = done.pop().result()
        return chosen
    finally:
        over.set()
        for attempt in attempts:
            attempt.cancel()
        for result in await asyncio.gather(*attempts, return_exceptions=True):
            if isinstance(result, Attachment) and result is not chosen:
                await result.close()


async def _keep_trying(
    address: str, connect: Connect, failed: Callable[[str, str], None], over: asyncio.Event
) -> Attachment | None:
    while not over.is_set():  # a cancellation is lost where it meets the end of a call
        try:
            return await Attachment.open(address, connect)
        except grpc.aio.AioRpcError as error:
            failed(address, describe(error))
        except ConnectionError as error:
            failed(address, str(error))
        await asyncio.sleep(_RETRY_SECONDS)
    return None


def describe(error: grpc.aio.AioRpcError) -> str:
    """A failed call in a few words."""
    return f"{error.code().name}: {error.details()}"
