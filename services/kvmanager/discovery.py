"""Which executors there are: by the names that were configured, and by what whoever led before knew beside these."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from contextlib import suppress

from services.config import join_address
from services.kvmanager.driver import Driver
from services.kvmanager.executors import AlreadyListed, Executors
from services.state.executor_registry import ExecutorRegistry
from services.state.store import StateUnavailable

log = logging.getLogger(__name__)

LOOK_UP_SECONDS = 5.0
UNANSWERED_LOOKS = 12
"""After so many, an executor that only the registry knows, and that has not answered, is taken out."""


class Discovery:
    """Looks the names up again and again: replicas of a service that share one name come and go.

    An address is added when a name stands for it that did not do so before; one that was drained is not added again.
    It is taken out when no name stands for it any more and it does not answer either.

    Executors that were added at run time are in the registry: a new leader adds them once, and takes those out again
    that never answer.

    Args:
        names: ``host:port`` each.
        group: the executors', in the registry.
    """

    def __init__(
        self, names: Sequence[str], executors: Executors, driver: Driver, registry: ExecutorRegistry, group: str
    ) -> None:
        self._executors = executors
        self._driver = driver
        self._registry = registry
        self._group = group
        self._known: dict[str, set[str]] = {name: set() for name in names}
        self._unresolved: set[str] = set()
        self._unanswered: set[str] = set()

    async def run(self) -> None:
        """Works until cancelled."""
        await asyncio.gather(self._take_over(), self._keep_looking())

    async def _keep_looking(self) -> None:
        looks = 0
        while True:
            for name in self._known:
                await self._look_up(name)
            await asyncio.sleep(LOOK_UP_SECONDS)
            looks += 1
            await self._drop_unanswered(last=looks == UNANSWERED_LOOKS)

    async def _take_over(self) -> None:
        with suppress(StateUnavailable):
            for each in await self._registry.list(self._group):
                with suppress(AlreadyListed):
                    self._executors.add(each.address)
                    self._unanswered.add(each.address)

    async def _drop_unanswered(self, last: bool) -> None:
        named = set().union(*self._known.values())
        self._unanswered = {
            each for each in self._unanswered - named if each in self._executors and not self._driver.is_attached(each)
        }
        if last:
            for address in self._unanswered:
                await self._executors.remove(address)
            self._unanswered.clear()

    async def _look_up(self, name: str) -> None:
        addresses = await self._resolve(name)
        if addresses is None:
            return
        known = self._known[name]
        for address in sorted(addresses - known):
            with suppress(AlreadyListed):
                self._executors.add(address)
        kept = {each for each in known - addresses if self._driver.is_attached(each)}
        self._known[name] = addresses | kept
        everywhere = set().union(*self._known.values())
        for address in known - everywhere:
            if address in self._executors:
                await self._executors.remove(address)

    async def _resolve(self, name: str) -> set[str] | None:
        """None where the name is not known, for now."""
        host, _, port = name.rpartition(":")
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        except OSError as error:
            if name not in self._unresolved:
                log.warning("executor not found", extra={"name_of_executor": name, "reason": str(error)})
                self._unresolved.add(name)
            return None
        self._unresolved.discard(name)
        return {join_address(str(address[0]), int(address[1])) for *_, address in found}
