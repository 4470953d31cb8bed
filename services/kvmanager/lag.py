"""How late this process itself is."""

from __future__ import annotations

import asyncio
import time


async def sleep_and_measure_lag(seconds: float) -> float:
    """Sleeps.

    Returns:
        By how many seconds it woke up too late: the process was stopped, or its event loop was busy.
    """
    start = time.monotonic()
    await asyncio.sleep(seconds)
    return max(0.0, time.monotonic() - start - seconds)
