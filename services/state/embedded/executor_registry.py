"""The executor registry within one process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from services.state.executor_registry import LEASE_SECONDS, RegisteredExecutor


class EmbeddedExecutorRegistry:
    """As `ExecutorRegistry` says."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._groups: dict[str, dict[str, tuple[str, float]]] = defaultdict(dict)

    async def register(self, group: str, address: str, incarnation: str) -> None:
        self._groups[group][address] = (incarnation, self._clock() + LEASE_SECONDS)

    async def remove(self, group: str, address: str) -> None:
        self._groups[group].pop(address, None)

    async def list(self, group: str) -> Sequence[RegisteredExecutor]:
        now = self._clock()
        live = {address: entry for address, entry in self._groups[group].items() if now < entry[1]}
        self._groups[group] = live
        return [RegisteredExecutor(address, live[address][0]) for address in sorted(live)]
