"""How the stack was, second by second."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.v1 import kvmanager_pb2
from services.gateway.kvmanager_link import ANSWER_SECONDS
from services.gateway.monitoring.groups import Group
from services.rpc.status import RpcError

SAMPLE_SECONDS = 1.0
HISTORY_SECONDS = 300.0

MemoryMap = kvmanager_pb2.GetMemoryMapResponse


@dataclass(frozen=True, slots=True)
class Sample:
    """The stack at one moment.

    Attributes:
        time: Seconds since 1970.
        ready: There is an executor.
        state_available: This gateway's state store is there.
        memory: What each group that answers has, in the order of the groups.
    """

    time: float
    ready: bool
    state_available: bool
    memory: Sequence[tuple[Group, MemoryMap]]


class Samples:
    """Looks at all groups once a second, whoever watches, and more often while somebody asks for it.

    Args:
        groups: Those that are looked at.
        ready: Whether there is an executor.
        state_available: Whether the state store is there.

    Attributes:
        history: The last minutes, oldest first.
    """

    def __init__(self, groups: Sequence[Group], ready: Callable[[], bool], state_available: Callable[[], bool]) -> None:
        self._groups = groups
        self._ready = ready
        self._state_available = state_available
        self.history: deque[Sample] = deque(maxlen=round(HISTORY_SECONDS / SAMPLE_SECONDS))
        self._latest: Sample | None = None
        self._under_way: asyncio.Future[Sample] | None = None

    async def run(self) -> None:
        """Takes samples until cancelled."""
        while True:
            self.history.append(await self._take())
            await asyncio.sleep(SAMPLE_SECONDS)

    def up_to(self, time: float) -> list[Sample]:
        """The history before this moment, oldest first."""
        return [sample for sample in self.history if sample.time < time]

    async def latest(self, max_age: float) -> Sample:
        """A sample that is no older than so many seconds. Those who ask at the same time share one."""
        if self._latest is not None and time.time() - self._latest.time <= max_age:
            return self._latest
        if self._under_way is None:
            self._under_way = asyncio.ensure_future(self._take())
            self._under_way.add_done_callback(self._taken)
        return await asyncio.shield(self._under_way)

    def _taken(self, _: asyncio.Future[Sample]) -> None:
        self._under_way = None

    async def _take(self) -> Sample:
        maps = await asyncio.gather(*(_memory_of(group) for group in self._groups))
        memory = [(group, found) for group, found in zip(self._groups, maps, strict=True) if found is not None]
        self._latest = Sample(time.time(), self._ready(), self._state_available(), memory)
        return self._latest


async def _memory_of(group: Group) -> MemoryMap | None:
    """None where there is no KV manager at this moment, or it has no executor yet."""
    if not group.link.open:
        return None
    request = kvmanager_pb2.GetMemoryMapRequest()
    try:
        return await group.link.ask(lambda stub: stub.GetMemoryMap(request, timeout=ANSWER_SECONDS))
    except RpcError:
        return None
