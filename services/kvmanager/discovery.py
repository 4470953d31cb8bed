"""Which executors there are, by the names that were configured: a name may stand for several addresses."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from contextlib import suppress

from services.config import join_address
from services.kvmanager.driver import Driver
from services.kvmanager.executors import AlreadyListed, Executors

log = logging.getLogger(__name__)

LOOK_UP_SECONDS = 5.0


class Discovery:
    """Looks the names up again and again: replicas of a service that share one name come and go.

    An address is added when a name stands for it that did not do so before; one that was drained is not added again.
    It is taken out when no name stands for it any more and it does not answer either.

    Args:
        names: ``host:port`` each.
    """

    def __init__(self, names: Sequence[str], executors: Executors, driver: Driver) -> None:
        self._executors = executors
        self._driver = driver
        self._known: dict[str, set[str]] = {name: set() for name in names}
        self._unresolved: set[str] = set()

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            for name in self._known:
                await self._look_up(name)
            await asyncio.sleep(LOOK_UP_SECONDS)

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
