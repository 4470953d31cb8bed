"""The executors that there are: which ones join, which ones leave, and the connection to each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from services.kvmanager.driver import POLL_SECONDS, Driver
from services.kvmanager.epochs import Epochs
from services.kvmanager.executor_link import CHECK_SECONDS, ExecutorLink
from services.kvmanager.stall import Stall
from services.rpc.channel import Connect
from services.state.executor_registry import ExecutorRegistry
from services.state.store import StateUnavailable

log = logging.getLogger(__name__)


class AlreadyListed(Exception):
    """An executor with this address is in the list, or has not quite left it."""


class NotListed(Exception):
    """There is no executor with this address in the list."""


@dataclass(slots=True)
class _Entry:
    link: ExecutorLink
    connection: asyncio.Task[None]
    drain: asyncio.Task[None] | None = None


class Executors:
    """A link to each executor. An address that was taken out can be added again.

    Needs a running event loop.

    Args:
        group: of executors, which one KV manager has at a time.
        patience: least seconds that an executor gets for a step before it counts as lost.
    """

    def __init__(
        self,
        driver: Driver,
        registry: ExecutorRegistry,
        group: str,
        epochs: Epochs,
        patience: float,
        connect: Connect,
    ) -> None:
        self._driver = driver
        self._registry = registry
        self._group = group
        self._epochs = epochs
        self._patience = patience
        self._connect = connect
        self._entries: dict[str, _Entry] = {}
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        driver.on_work = self._wake

    def _wake(self) -> None:
        for entry in self._entries.values():
            entry.link.wake()

    def __contains__(self, address: str) -> bool:
        return address in self._entries

    def add(self, address: str) -> None:
        """Takes an executor into the list. It joins when it answers.

        Raises:
            AlreadyListed: it is there.
        """
        if address in self._entries:
            raise AlreadyListed(address)
        link = ExecutorLink(
            address, self._registry, self._group, self._epochs, self._driver, self._patience, self._connect
        )
        self._entries[address] = _Entry(link, self._start(link.run()))

    async def drain(self, address: str) -> None:
        """Takes an executor out of the list when nothing runs on it any more, and gives it nothing new until then.

        Goes on to its end even if whoever waits for it does not.

        Raises:
            NotListed: there is no such executor.
        """
        entry = self._entries.get(address)
        if entry is None:
            raise NotListed(address)
        if entry.drain is None:
            entry.drain = self._start(self._drain(address, entry))
        await asyncio.shield(entry.drain)

    async def _drain(self, address: str, entry: _Entry) -> None:
        log.info("executor drains", extra={"address": address})
        entry.link.leave()
        self._driver.start_draining(address)
        while not (entry.connection.done() or self._driver.is_drained(address)):
            await asyncio.sleep(POLL_SECONDS)
        if self._entries.get(address) is entry:
            await self.remove(address)
            with suppress(StateUnavailable):
                await self._registry.remove(self._group, address)
        log.info("executor has left", extra={"address": address})

    async def remove(self, address: str) -> None:
        """Takes an executor out of the list at once. What runs on it goes on elsewhere."""
        entry = self._entries.pop(address)
        entry.connection.cancel()
        await asyncio.wait([entry.connection])

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._note_failure)
        return task

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) and not self._failure.done():
            self._failure.set_exception(error)

    async def run(self) -> None:
        """Keeps connections until cancelled. Whatever unexpected happens in one of them is raised here."""
        watch = self._start(self._watch_progress())
        try:
            await self._failure
        finally:
            watch.cancel()
            tasks = [task for entry in self._entries.values() for task in (entry.connection, entry.drain) if task]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch_progress(self) -> None:
        """Tells the driver when there is work and no step goes on, for longer than any executor gets for one."""
        stall = Stall(CHECK_SECONDS)
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            bound = max((entry.link.bound for entry in self._entries.values()), default=self._patience)
            self._driver.report_stall(stall.look(self._driver.num_step_events, self._driver.has_work, bound))
