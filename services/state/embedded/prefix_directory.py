"""The prefix directory within one process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from services.state.prefix_directory import IDENTITY_BYTES, LEASE_SECONDS, MAX_BLOCKS


@dataclass(slots=True)
class _Group:
    end: float
    blocks: set[bytes] = field(default_factory=set)


class EmbeddedPrefixDirectory:
    """As `PrefixDirectory` says."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._models: dict[str, dict[str, _Group]] = defaultdict(dict)

    async def publish(self, model: str, group: str, added: Sequence[bytes], removed: Sequence[bytes]) -> bool:
        known = self._refresh(model, group)
        if not known:
            self._models[model][group] = _Group(self._clock() + LEASE_SECONDS)
        blocks = self._models[model][group].blocks
        blocks.difference_update(identity[:IDENTITY_BYTES] for identity in removed)
        for identity in added:
            if len(blocks) < MAX_BLOCKS:
                blocks.add(identity[:IDENTITY_BYTES])
        return known

    async def refresh(self, model: str, group: str) -> bool:
        return self._refresh(model, group)

    async def clear(self, model: str, group: str) -> None:
        self._models[model].pop(group, None)

    async def longest(self, model: str, identities: Sequence[bytes]) -> Mapping[str, int]:
        wanted = [identity[:IDENTITY_BYTES] for identity in identities]
        lengths = {}
        for name, group in self._live(model).items():
            if length := sum(1 for _ in takewhile(group.blocks.__contains__, wanted)):
                lengths[name] = length
        return lengths

    def _refresh(self, model: str, group: str) -> bool:
        known = self._live(model).get(group)
        if known is not None:
            known.end = self._clock() + LEASE_SECONDS
        return known is not None

    def _live(self, model: str) -> dict[str, _Group]:
        now = self._clock()
        self._models[model] = {name: group for name, group in self._models[model].items() if now < group.end}
        return self._models[model]
