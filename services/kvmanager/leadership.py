"""Which of several KV managers leads a group of executors: the one that holds the lease in the state store."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from services.state.leadership import Holder, NotLeader
from services.state.store import StateStore, StateUnavailable

log = logging.getLogger(__name__)

LEASE_SECONDS = 1.2
RENEW_SECONDS = LEASE_SECONDS / 4
TRY_SECONDS = 0.2
"""How often a standby looks whether anyone leads."""

AFTER_OUTAGE_SECONDS = 2 * LEASE_SECONDS
"""After the state store was away, the leader has so long to renew its lease before a standby takes it."""

ALONE_SECONDS = 2.0
"""After this time a KV manager leads without a lease where the store has not been reached since its start, or says that
nobody leads and, full or read-only, gives nobody the lease."""


class Candidate:
    """One KV manager's way to the lead of its group, and out of it: standby, leader, standby again.

    What it believes may be late: it may take itself for the leader for some time after another has become it. That is
    harmless, since an executor refuses whoever has a lower epoch, and only one gets the next one.

    - While the store is away a leader goes on, and a standby stays one. After that a standby waits somewhat longer,
      so that the leader has its lease again first, even if the store has lost everything.
    - Whoever leads without a lease and is deposed waits for the store: two never take an executor from each other in
      turns.

    Args:
        store: Where the lease is.
        group: What is led.
        holder: Itself.
        clock: Seconds.
    """

    def __init__(
        self, store: StateStore, group: str, holder: Holder, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.group = group
        self.holder = holder
        self._store = store
        self._clock = clock
        self._leads = asyncio.Event()
        self._stands_by = asyncio.Event()
        self._stands_by.set()
        self._settled = asyncio.Event()
        self._retired = False
        self._one_at_a_time = asyncio.Lock()
        self._reached = False
        self._may_lead_alone = True
        self._no_lease_since: float | None = clock()
        self._was_away = False
        self._not_before = clock()

    @property
    def leads(self) -> bool:
        """It takes itself for the leader."""
        return self._leads.is_set()

    async def until_settled(self) -> None:
        """Returns when it leads, or has seen another lead."""
        await self._settled.wait()

    async def until_leading(self) -> None:
        """Returns when it leads."""
        await self._leads.wait()

    async def until_deposed(self) -> None:
        """Returns when it does not lead any more."""
        await self._stands_by.wait()

    async def run(self) -> None:
        """Takes its turns until cancelled."""
        while True:
            await asyncio.sleep(await self.turn())

    async def turn(self) -> float:
        """Takes, renews, or looks at the lease. Returns the seconds until the next turn."""
        async with self._one_at_a_time:
            if self._retired:
                return TRY_SECONDS
            if self.leads:
                await self._renew()
            else:
                await self._try()
        return RENEW_SECONDS if self.leads else TRY_SECONDS

    def depose(self, reason: str) -> None:
        """Another leads: an executor has seen its epoch, or the store has said so."""
        self._may_lead_alone = False
        if self.leads:
            log.warning("another KV manager leads; standing by", extra={"group": self.group, "reason": reason})
            self._leads.clear()
            self._stands_by.set()

    async def next_epoch(self, above: int) -> int:
        """See `Leadership.next_epoch`. The lease is renewed before, in case it has just run out and nobody has it."""
        async with self._one_at_a_time:
            if not self.leads:
                raise NotLeader(f"{self.holder.address} stands by")
            await self._take()
            return await self._store.leadership.next_epoch(self.group, self.holder, above)

    async def give_up(self) -> None:
        """Lets another lead at once, and never leads again."""
        self._retired = True
        async with self._one_at_a_time:  # a renewal that is under way must not come after this
            if not self.leads:
                return
            self._leads.clear()
            self._stands_by.set()
            try:
                await self._store.leadership.give_up(self.group, self.holder)
            except StateUnavailable as error:
                log.warning("the lease could not be given up; it runs out", extra={"error": str(error)})

    async def _renew(self) -> None:
        try:
            held = await self._take()
        except StateUnavailable:
            return  # the lease is the last one known
        if not held:
            self.depose("the lease ran out, and another has it")

    async def _take(self) -> bool:
        held = await self._store.leadership.lead(self.group, self.holder, LEASE_SECONDS)
        self._saw_lease()
        return held

    def _saw_lease(self) -> None:
        """Somebody has it, so the store gives it."""
        self._reached = self._may_lead_alone = True
        self._no_lease_since = None

    def _lead_alone(self) -> None:
        """There is no lease to be had."""
        now = self._clock()
        if self._no_lease_since is None:
            self._no_lease_since = now
        if self._may_lead_alone and now - self._no_lease_since >= ALONE_SECONDS:
            log.warning("the state store gives no lease; leading without one", extra={"group": self.group})
            self._lead()

    async def _try(self) -> None:
        began = self._clock()
        try:
            # Only reads, so that a try which the store gets to see late, after an outage, takes nothing from anyone.
            leader = await self._store.leadership.leader(self.group)
        except StateUnavailable:
            self._was_away = True
            if not self._reached:
                self._lead_alone()
            return
        self._reached = True
        if leader not in (None, self.holder):
            self._settled.set()
            self._saw_lease()
        elif not self._has_been_away(began):
            await self._take_over()

    def _has_been_away(self, began: float) -> bool:
        """Whether the store, or this process, was away so lately that the leader may not have its lease again yet."""
        now = self._clock()
        if self._was_away:
            self._not_before = now + AFTER_OUTAGE_SECONDS
            self._was_away = False
        elif now - began > RENEW_SECONDS:  # whatever was slow, the leader may have had to wait for it too
            self._not_before = max(self._not_before, now + 2 * RENEW_SECONDS)
        return now < self._not_before

    async def _take_over(self) -> None:
        try:
            if await self._take():
                self._lead()
        except StateUnavailable:
            self._lead_alone()

    def _lead(self) -> None:
        log.info("this KV manager leads", extra={"group": self.group})
        self._stands_by.clear()
        self._settled.set()
        self._leads.set()
