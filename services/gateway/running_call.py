"""A call that streams to its client, and that others can end."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import grpc

from services.gateway.request_stream import RequestStream
from services.rpc.status import RpcError


class Recipient(Protocol):
    """Whom the responses of a call go to: a gRPC call's context, say."""

    async def write(self, response: Any, /) -> None:
        """Sends a response. Takes as long as the recipient does to take what came before."""

    def time_remaining(self) -> float | None:
        """Seconds until the call's own deadline, if it has one."""


class RunningCall:
    """The call whose handler makes this object.

    Args:
        stream: What is sent to its client comes from here.
        recipient: Its client.
    """

    def __init__(self, stream: RequestStream, recipient: Recipient) -> None:
        self._stream = stream
        self._recipient = recipient
        self._task = asyncio.current_task()
        self._writes = False
        self._error: RpcError | None = None

    def end(self, error: RpcError) -> None:
        """Ends the call, even if its client reads no more."""
        self._error = error
        self._stream.fail(error)
        if self._writes and self._task is not None:
            self._task.cancel()

    async def write(self, response: bytes) -> None:
        """Sends a response. Takes as long as the client does to read what came before.

        Raises:
            RpcError: somebody has ended the call.
        """
        self._writes = True
        try:
            await self._recipient.write(response)
        except asyncio.CancelledError:
            if self._error is None:
                raise
            raise self._error from None
        except grpc.aio.InternalError as failure:
            # The call ended at this very moment: its client left, or its own deadline came. There is nobody to tell.
            raise asyncio.CancelledError from failure
        finally:
            self._writes = False
