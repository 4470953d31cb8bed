"""One leader a group at a time, and epochs that only rise."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time

import pytest

from services.state.leadership import Holder, NotLeader
from services.state.store import StateStore
from tests.services.e2e.redis_server import RedisServer
from tests.services.state.conftest import OpenStore
from tests.services.state.waiting import PATIENCE, eventually

A, B = Holder("10.0.0.1:50052", "a1"), Holder("10.0.0.2:50052", "b1")


async def test_the_first_to_ask_leads_until_it_gives_up(open_view: OpenStore) -> None:
    a, b = (await open_view()).leadership, (await open_view()).leadership
    assert await a.leader("g") is None
    assert await a.lead("g", A, 30)
    assert not await b.lead("g", B, 30)
    assert await a.lead("g", A, 30), "renewed"
    assert await b.leader("g") == A
    assert await b.lead("another", B, 30), "groups are apart"
    await b.give_up("g", B)
    assert await b.leader("g") == A, "nobody gives up what another has"
    await a.give_up("g", A)
    assert await b.lead("g", B, 30)


async def test_a_lease_ends_by_itself(store: StateStore) -> None:
    leadership = store.leadership
    assert await leadership.lead("g", A, 0.05)
    await eventually(lambda: leadership.lead("g", B, 30), "the lease of another that has ended")
    assert not await leadership.lead("g", A, 30)
    with pytest.raises(NotLeader):
        await leadership.next_epoch("g", A, 0)


async def test_a_process_started_anew_does_not_have_its_predecessors_lease(store: StateStore) -> None:
    assert await store.leadership.lead("g", A, 30)
    assert not await store.leadership.lead("g", Holder(A.address, "a2"), 30)


async def test_epochs_are_above_what_executors_have_seen(store: StateStore) -> None:
    await store.leadership.lead("g", A, 30)
    above = (0, 0, 7, 7, 3, 10, 99, 9, 2**60, 0)
    epochs = [await store.leadership.next_epoch("g", A, number) for number in above]
    assert epochs == [1, 2, 8, 9, 10, 11, 100, 101, 2**60 + 1, 2**60 + 2]


async def test_only_the_leader_moves_the_epoch(store: StateStore) -> None:
    leadership = store.leadership
    with pytest.raises(NotLeader):
        await leadership.next_epoch("g", A, 0)
    await leadership.lead("g", A, 30)
    with pytest.raises(NotLeader):
        await leadership.next_epoch("g", B, 100)
    assert await leadership.next_epoch("g", A, 0) == 1


async def test_epochs_rise_from_leader_to_leader(store: StateStore) -> None:
    epochs = []
    for holder in (A, B, A):
        assert await store.leadership.lead("g", holder, 30)
        epochs += [await store.leadership.next_epoch("g", holder, 0) for _ in range(2)]
        await store.leadership.give_up("g", holder)
    assert epochs == [1, 2, 3, 4, 5, 6]


def test_an_incarnation_can_be_told_from_an_address() -> None:
    for incarnation in ("", "a@b"):
        with pytest.raises(ValueError, match="incarnation"):
            Holder("10.0.0.1:50052", incarnation)


async def test_a_redis_that_was_emptied_gives_no_epoch_twice(redis_server: RedisServer, open_redis: OpenStore) -> None:
    leadership = (await open_redis(redis_server.url)).leadership
    await leadership.lead("g", A, 30)
    seen = await leadership.next_epoch("g", A, 41)
    redis_server.client.flushall()
    with pytest.raises(NotLeader):
        await leadership.next_epoch("g", A, seen)
    assert await leadership.lead("g", A, 30)
    assert await leadership.next_epoch("g", A, seen) > seen


@pytest.mark.parametrize("seed", [random.randrange(2**32)])
async def test_never_two_leaders_at_once(open_view: OpenStore, seed: int) -> None:
    """Each counts its lease from before it asked to when it stops, as holders do: no two of those times overlap."""
    chance = random.Random(seed)
    terms: list[tuple[float, float, Holder]] = []
    epochs: list[tuple[float, float, int]] = []
    end = time.monotonic() + PATIENCE

    def enough() -> bool:
        return len(terms) >= 100 and len({holder for _, _, holder in terms}) >= 3

    async def candidate(number: int) -> None:
        leadership = (await open_view()).leadership
        holder = Holder(f"10.0.0.{number}:50052", f"life{number}")
        while not enough() and time.monotonic() < end:
            lease = chance.choice([0.003, 0.01, 0.03])
            asked = time.monotonic()
            if await leadership.lead("g", holder, lease):
                since = time.monotonic()
                with contextlib.suppress(NotLeader):
                    for _ in range(chance.randrange(3)):
                        began = time.monotonic()
                        epoch = await leadership.next_epoch("g", holder, chance.choice([0, 0, 0, len(epochs) * 2]))
                        epochs.append((began, time.monotonic(), epoch))
                until = min(asked + lease, time.monotonic())
                terms.append((since, until, holder))
                if chance.random() < 0.3:
                    await leadership.give_up("g", holder)
            await asyncio.sleep(chance.choice([0, 0.001, 0.005, 0.02]))

    await asyncio.gather(*(candidate(number) for number in range(5)))
    leading = sorted(term for term in terms if term[0] < term[1])
    assert enough(), "they were to take turns"
    for (_, until, holder), (since, _, other) in itertools.pairwise(leading):
        assert holder == other or until <= since, f"seed {seed}: {holder} and {other} led at once"
    assert len({epoch for _, _, epoch in epochs}) == len(epochs), f"seed {seed}: an epoch was given out twice"
    for _, done, epoch in epochs:
        assert all(later > epoch for began, _, later in epochs if began > done), f"seed {seed}: an epoch went back"
