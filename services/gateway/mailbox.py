"""Responses on their way to a reader in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator


class Mailbox:
    """Holds one response at a time: whoever writes goes at the reader's pace.

    So what comes while the reader is slow is joined, as it is for a client on the network.
    """

    def __init__(self) -> None:
        self._responses: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._free = asyncio.Semaphore(1)

    def time_remaining(self) -> float | None:
        """None: a reader here has no deadline but the request's own."""
        return None

    async def write(self, response: bytes) -> None:
        """Puts a response in, once the one before is taken."""
        await self._free.acquire()
        self._responses.put_nowait(response)

    def close(self) -> None:
        """Nothing more will come."""
        self._responses.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (response := await self._responses.get()) is not None:
            self._free.release()
            yield response
