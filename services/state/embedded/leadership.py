"""Leadership within one process."""

from __future__ import annotations

from collections.abc import Callable

from services.state.leadership import Holder, NotLeader


class EmbeddedLeadership:
    """As `Leadership` says, by this process's clock. Epochs start anew with it, above what executors have seen."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._leases: dict[str, tuple[Holder, float]] = {}
        self._epochs: dict[str, int] = {}

    async def lead(self, group: str, holder: Holder, lease_seconds: float) -> bool:
        if self._leader(group) not in (None, holder):
            return False
        self._leases[group] = (holder, self._clock() + lease_seconds)
        return True

    async def give_up(self, group: str, holder: Holder) -> None:
        if self._leader(group) == holder:
            del self._leases[group]

    async def next_epoch(self, group: str, holder: Holder, above: int) -> int:
        if self._leader(group) != holder:
            raise NotLeader(f"{holder.address} does not lead {group}")
        self._epochs[group] = max(self._epochs.get(group, 0), above) + 1
        return self._epochs[group]

    async def leader(self, group: str) -> Holder | None:
        return self._leader(group)

    def _leader(self, group: str) -> Holder | None:
        holder, end = self._leases.get(group, (None, 0.0))
        return holder if self._clock() < end else None
