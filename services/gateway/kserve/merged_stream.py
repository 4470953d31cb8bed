"""One stream of what several tasks have to say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class MergedStream(Generic[T]):
    """Tasks put items in, one reader takes them out, and the tasks go at the reader's pace.

    The stream ends when all tasks have. A task that fails ends it with its exception. Whoever leaves before the end
    closes the iterator, and that ends the tasks.
    """

    def __init__(self) -> None:
        self._items: asyncio.Queue[tuple[T] | asyncio.Task[None]] = asyncio.Queue()
        self._free = asyncio.Semaphore(1)
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """One more task. It may be cancelled; the others go on."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._items.put_nowait)
        return task

    async def put(self, item: T) -> None:
        """Puts an item in, once the one before is taken."""
        await self._free.acquire()
        self._items.put_nowait((item,))

    async def items(self) -> AsyncGenerator[T, None]:
        """What is put in."""
        try:
            while self._tasks:
                taken = await self._items.get()
                if isinstance(taken, tuple):
                    self._free.release()
                    yield taken[0]
                    continue
                self._tasks.discard(taken)
                if not taken.cancelled():
                    taken.result()
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
