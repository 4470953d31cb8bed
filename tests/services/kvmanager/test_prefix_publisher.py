"""The prefix directory says what the core has cached, whatever happens to it and to the store."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from kvmanager.kv_events import KVEventLog
from kvmanager.views import cached_identities
from services.kvmanager import prefix_publisher
from services.kvmanager.prefix_publisher import PrefixPublisher
from services.state.embedded.prefix_directory import EmbeddedPrefixDirectory
from services.state.prefix_directory import LEASE_SECONDS
from services.state.store import StateUnavailable
from tests.kvmanager.harness import Harness

MODEL, GROUP = "model", "group"


class Directory(EmbeddedPrefixDirectory):
    """May be away, or lose everything."""

    def __init__(self) -> None:
        self.now = 0.0
        self.away = False
        self.num_calls = 0
        super().__init__(lambda: self.now)

    def _check(self) -> None:
        self.num_calls += 1
        if self.away:
            raise StateUnavailable("away")

    async def publish(self, model: str, group: str, added: Sequence[bytes], removed: Sequence[bytes]) -> bool:
        self._check()
        return await super().publish(model, group, added, removed)

    async def refresh(self, model: str, group: str) -> bool:
        self._check()
        return await super().refresh(model, group)

    async def clear(self, model: str, group: str) -> None:
        self._check()
        await super().clear(model, group)

    def lose(self) -> None:
        self._models.clear()

    @property
    def blocks(self) -> set[bytes]:
        group = self._live(MODEL).get(GROUP)
        return set() if group is None else group.blocks


class Group:
    """A core with two executors that have little room, and its publisher."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(prefix_publisher, "AWAY_SECONDS", 0.0)
        self.harness = Harness(num_blocks=24, num_host_blocks=12, num_executors=2)
        self.directory = Directory()
        self.publisher = PrefixPublisher(self.harness.manager, self.directory, GROUP, lambda: MODEL)
        self._handle = 0

    def compute(self, count: int = 1) -> None:
        """Some more requests, which leave blocks and push out others."""
        for _ in range(count):
            self._handle += 1
            self.harness.submit(self._handle, self.harness.prompt(20), max_tokens=8)
        self.harness.run()

    @property
    def cached(self) -> set[bytes]:
        return {identity[:8] for identity in cached_identities(self.harness.manager)}


async def test_what_comes_and_goes_is_told_as_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(monkeypatch)
    await group.publisher.publish()
    assert group.directory.blocks == set()
    cleared = group.directory.num_calls
    for _ in range(10):
        group.compute(2)
        await group.publisher.publish()
        assert group.directory.blocks == group.cached != set()
    assert group.directory.num_calls == cleared + 10, "one call for each time"
    await group.publisher.publish()
    assert group.directory.num_calls == cleared + 10, "nothing has changed"


async def test_a_lost_executor_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(monkeypatch)
    group.compute(4)
    await group.publisher.publish()
    before = set(group.directory.blocks)
    group.harness.detach("executor-1")
    await group.publisher.publish()
    assert group.directory.blocks == group.cached
    assert group.directory.blocks < before


async def test_the_lease_is_renewed_and_one_that_ran_out_is_made_good(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(monkeypatch)
    group.compute()
    await group.publisher.publish()
    for _ in range(4):
        group.directory.now += LEASE_SECONDS / 2
        group.publisher._renewed -= LEASE_SECONDS / 2
        await group.publisher.publish()
        assert group.directory.blocks == group.cached != set()
    group.directory.now += 2 * LEASE_SECONDS
    group.publisher._renewed -= 2 * LEASE_SECONDS
    await group.publisher.publish()
    assert group.directory.blocks == group.cached


async def test_more_than_the_log_keeps_is_told_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(monkeypatch)
    log = group.harness.manager.kv_events
    log._events = KVEventLog(window=3)._events
    group.compute(3)
    await group.publisher.publish()
    group.compute(3)
    await group.publisher.publish()
    assert group.directory.blocks == group.cached


async def test_whatever_happens_in_the_end_the_directory_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    group = Group(monkeypatch)
    for _ in range(60):
        what = chance.random()
        if what < 0.5:
            group.compute(chance.randrange(1, 4))
        elif what < 0.65:
            group.directory.away = not group.directory.away
        elif what < 0.75:
            group.directory.lose()
        elif what < 0.8:
            group.harness.lose_and_return(f"executor-{chance.randrange(2)}")
        await group.publisher.publish()
    group.directory.away = False
    group.compute()
    await group.publisher.publish()
    group.compute()
    await group.publisher.publish()
    assert group.directory.blocks == group.cached
