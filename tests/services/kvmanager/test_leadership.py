"""Who leads: candidates that take their turns in any order while the store comes and goes."""

from __future__ import annotations

import random

import pytest

from services.kvmanager import leadership
from services.kvmanager.leadership import ALONE_SECONDS, LEASE_SECONDS, TRY_SECONDS, Candidate
from services.state.embedded.store import EmbeddedStore
from services.state.leadership import Holder, NotLeader
from services.state.store import StateUnavailable
from services.state.token_log import TokenLogLimits

GROUP = "executors"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Link:
    """One process's connection to a store that others have too; it may be cut."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store
        self.executors = store.executors
        self.leadership = self
        self.cut = False
        self.full = False

    def _use(self) -> EmbeddedStore:
        if self.cut:
            raise StateUnavailable("cut")
        return self._store

    async def lead(self, group: str, holder: Holder, lease_seconds: float) -> bool:
        leadership = self._use().leadership
        if self.full and await leadership.leader(group) != holder:
            raise StateUnavailable("full: leases can be renewed, not taken")
        return await leadership.lead(group, holder, lease_seconds)

    async def give_up(self, group: str, holder: Holder) -> None:
        await self._use().leadership.give_up(group, holder)

    async def next_epoch(self, group: str, holder: Holder, above: int) -> int:
        return await self._use().leadership.next_epoch(group, holder, above)

    async def leader(self, group: str) -> Holder | None:
        return await self._use().leadership.leader(group)


class Group:
    """Candidates for one lead."""

    def __init__(self, size: int) -> None:
        self.clock = Clock()
        self.store = EmbeddedStore(TokenLogLimits(), self.clock)
        self.links = [Link(self.store) for _ in range(size)]
        self.candidates = [self.make(link, number) for number, link in enumerate(self.links)]

    def make(self, link: Link, number: int) -> Candidate:
        return Candidate(link, GROUP, Holder(f"kv:{number}", str(number)), self.clock)  # type: ignore[arg-type]

    def leaders(self) -> list[int]:
        return [number for number, candidate in enumerate(self.candidates) if candidate.leads]

    async def turns(self, seconds: float, *numbers: int) -> None:
        """So much time goes by while these take their turns; all, if none is named."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            for number in numbers or range(len(self.candidates)):
                await self.candidates[number].turn()
            self.clock.now += TRY_SECONDS / 2

    async def epochs(self) -> list[int]:
        """Of those who get the next one."""
        found = []
        for candidate in self.candidates:
            try:
                found.append(await candidate.next_epoch(0))
            except (NotLeader, StateUnavailable):
                continue
        return found


async def test_the_first_leads_and_the_others_stand_by() -> None:
    group = Group(3)
    await group.turns(10 * LEASE_SECONDS)
    assert group.leaders() == [0]
    assert len(await group.epochs()) == 1
    for candidate in group.candidates:
        await candidate.until_settled()


async def test_a_standby_takes_over_when_the_lease_has_run_out() -> None:
    group = Group(2)
    await group.turns(LEASE_SECONDS)
    await group.turns(LEASE_SECONDS - TRY_SECONDS, 1)  # the leader is dead
    assert not group.candidates[1].leads
    await group.turns(2 * TRY_SECONDS, 1)
    assert group.candidates[1].leads


async def test_a_leader_that_was_held_still_stands_by_as_soon_as_it_looks() -> None:
    group = Group(2)
    await group.turns(LEASE_SECONDS)
    await group.turns(2 * LEASE_SECONDS, 1)
    assert group.leaders() == [0, 1]  # it does not know, but gets no epoch
    with pytest.raises(NotLeader):
        await group.candidates[0].next_epoch(0)
    await group.candidates[0].turn()
    assert group.leaders() == [1]
    await group.candidates[0].until_deposed()


async def test_a_leader_that_was_held_still_goes_on_where_nobody_took_over() -> None:
    group = Group(1)
    await group.turns(LEASE_SECONDS)
    group.clock.now += 10 * LEASE_SECONDS
    await group.candidates[0].turn()
    assert group.leaders() == [0]
    assert len(await group.epochs()) == 1


async def test_who_gives_up_is_followed_at_the_next_turn() -> None:
    group = Group(2)
    await group.turns(LEASE_SECONDS)
    await group.candidates[0].give_up()
    assert group.leaders() == []
    await group.candidates[1].turn()
    assert group.leaders() == [1]
    await group.candidates[1].give_up()
    await group.turns(3 * LEASE_SECONDS)
    assert group.leaders() == [], "who has given up does not come back"


async def test_the_lead_does_not_change_while_the_store_is_away_nor_after_it() -> None:
    """Even a store that has lost everything gives the lease to whoever led."""
    group = Group(3)
    await group.turns(LEASE_SECONDS)
    for link in group.links:
        link.cut = True
    await group.turns(20 * LEASE_SECONDS)
    assert group.leaders() == [0]
    await group.store.leadership.give_up(GROUP, group.candidates[0].holder)
    for link in group.links:
        link.cut = False
    await group.turns(0.5 * LEASE_SECONDS, 1, 2)  # the standbys see it first
    assert group.leaders() == [0]
    await group.turns(10 * LEASE_SECONDS)
    assert group.leaders() == [0]
    assert len(await group.epochs()) == 1


async def test_a_standby_takes_over_after_an_outage_if_the_leader_is_gone() -> None:
    group = Group(2)
    await group.turns(LEASE_SECONDS)
    for link in group.links:
        link.cut = True
    await group.turns(2 * LEASE_SECONDS, 1)
    group.links[1].cut = False
    await group.turns(leadership.AFTER_OUTAGE_SECONDS + 2 * TRY_SECONDS, 1)
    assert group.candidates[1].leads


async def test_a_leader_cut_off_from_the_store_is_deposed_by_an_executor_and_waits_for_the_store() -> None:
    group = Group(2)
    await group.turns(LEASE_SECONDS)
    group.links[0].cut = True
    await group.turns(3 * LEASE_SECONDS)
    assert group.leaders() == [0, 1]
    group.candidates[0].depose("an executor has seen a higher epoch")
    await group.turns(10 * ALONE_SECONDS)
    assert group.leaders() == [1]
    group.links[0].cut = False
    await group.turns(10 * LEASE_SECONDS)
    assert group.leaders() == [1]


async def test_without_a_store_from_the_start_one_leads_after_a_while_and_once_only() -> None:
    group = Group(1)
    group.links[0].cut = True
    await group.turns(0.9 * ALONE_SECONDS)
    assert group.leaders() == []
    await group.turns(0.5 * ALONE_SECONDS)
    assert group.leaders() == [0]
    group.candidates[0].depose("an executor has seen a higher epoch")
    await group.turns(5 * ALONE_SECONDS)
    assert group.leaders() == []
    group.links[0].cut = False
    await group.turns(leadership.AFTER_OUTAGE_SECONDS + LEASE_SECONDS)
    assert group.leaders() == [0]


async def test_a_full_store_holds_up_neither_a_leader_nor_its_successor() -> None:
    group = Group(2)
    await group.turns(LEASE_SECONDS)
    for link in group.links:
        link.full = True
    await group.turns(10 * LEASE_SECONDS)
    assert group.leaders() == [0]
    await group.turns(LEASE_SECONDS + ALONE_SECONDS + 2 * TRY_SECONDS, 1)
    assert group.candidates[1].leads
    await group.turns(1.0)
    group.candidates[0].depose("an executor has seen a higher epoch")
    await group.turns(10 * ALONE_SECONDS)
    assert group.leaders() == [1]
    for link in group.links:
        link.full = False
    await group.turns(10 * LEASE_SECONDS)
    assert len(group.leaders()) == 1
    assert len(await group.epochs()) == 1


async def test_whatever_happens_at_most_one_gets_an_epoch_and_in_the_end_one_leads() -> None:
    """Candidates are held still, cut off and started anew at random."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    group = Group(4)
    last_epoch = 0
    for _ in range(1500):
        number = chance.randrange(4)
        candidate, link = group.candidates[number], group.links[number]
        what = chance.random()
        if what < 0.85:
            await candidate.turn()
        elif what < 0.95:
            link.cut = not link.cut
        elif what < 0.97:
            await candidate.give_up()
            group.candidates[number] = group.make(link, 4 + chance.randrange(1 << 30))
        else:
            candidate.depose("at random")
        group.clock.now += chance.choice([0.0, 0.01, 0.1, 0.3, LEASE_SECONDS])
        epochs = await group.epochs()
        assert len(epochs) <= 1
        assert all(epoch > last_epoch for epoch in epochs), "epochs rise"
        last_epoch = max([last_epoch, *epochs])
    for link in group.links:
        link.cut = False
    await group.turns(5 * LEASE_SECONDS)
    assert len(group.leaders()) == 1
    assert len(await group.epochs()) == 1
