"""What the KV managers behind a gateway say of themselves, added up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from octavo.v1 import kvmanager_pb2
from services.rpc.status import RpcError
from services.telemetry import step_buckets
from services.telemetry.histogram import Histogram

ANSWER_SECONDS = 1.0
"""What a KV manager gets for an answer, so that a scrape comes to its end where one hangs."""

MemoryMap = kvmanager_pb2.GetMemoryMapResponse

COUNTERS = ("prompt_tokens", "cached_prompt_tokens", "preemptions")
"""Fields of `MemoryCounters` that are followed."""


class Link(Protocol):
    """The way to one group's KV manager."""

    @property
    def open(self) -> bool:
        """Attached to one."""

    async def ask(self, call: Callable[[Any], Awaitable[MemoryMap]]) -> MemoryMap:
        """Asks it, given what makes a call of its stub; waits for one where the way isn't open.

        Raises:
            RpcError: it does not answer.
        """


class Cluster:
    """Asks all of them before each scrape.

    Counters go on where a KV manager is followed by another, which starts from 0: what it has counted is added to what
    was there before.

    Attributes:
        maps: Of the groups that have answered the last question.
        totals: By name of `COUNTERS`, over all groups and since this gateway first asked.
        step_tokens: Tokens of each step.
    """

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = links
        self._latest: dict[Link, MemoryMap] = {}
        self.maps: list[MemoryMap] = []
        self.totals = dict.fromkeys(COUNTERS, 0)
        self.step_tokens = Histogram(step_buckets.TOKENS)

    async def refresh(self) -> None:
        """Asks."""
        answers = await asyncio.gather(*map(self._ask, self._links))
        self.maps = []
        for link, answer in zip(self._links, answers, strict=True):
            if answer is not None:
                self.maps.append(answer)
                self._add(self._latest.get(link, MemoryMap()), answer)
                self._latest[link] = answer

    async def _ask(self, link: Link) -> MemoryMap | None:
        if not link.open:
            return None
        request = kvmanager_pb2.GetMemoryMapRequest()
        try:
            return await link.ask(lambda stub: stub.GetMemoryMap(request, timeout=ANSWER_SECONDS))
        except RpcError:
            return None

    def _add(self, before: MemoryMap, now: MemoryMap) -> None:
        for name in COUNTERS:
            self.totals[name] += _growth([getattr(before.counters, name)], [getattr(now.counters, name)])[0]
        counts = [*now.step_tokens.counts, now.step_tokens.total]
        known = [*before.step_tokens.counts, before.step_tokens.total]
        *more, total = _growth(known if len(known) == len(counts) else [0] * len(counts), counts)
        if more:
            self.step_tokens.add_counts(more, total)


def _growth(before: Sequence[int], now: Sequence[int]) -> Sequence[int]:
    """What was added to counters; where one is less than it was, they have begun anew."""
    if any(new < old for old, new in zip(before, now, strict=True)):
        return now
    return [new - old for old, new in zip(before, now, strict=True)]
