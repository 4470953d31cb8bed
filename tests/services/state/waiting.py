"""Waiting for what will be, on the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

PATIENCE = 30.0


async def eventually(look: Callable[[], Awaitable[object] | object], what: str) -> None:
    """Looks until what it sees is true.

    Raises:
        AssertionError: it was not in time.
    """
    end = time.monotonic() + PATIENCE
    while True:
        seen = look()
        if isinstance(seen, Awaitable):
            seen = await seen
        if seen:
            return
        assert time.monotonic() < end, f"not within {PATIENCE:g} s: {what}"
        await asyncio.sleep(0.005)
