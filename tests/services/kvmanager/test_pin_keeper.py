"""Pins in the state store: noted, forgotten, and taken on by the next KV manager."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvmanager.spec import PinOrder, RequestSpec, Scope
from octavo.v1 import common_pb2
from services.kvmanager.pin_keeper import PinKeeper, decode_order, encode_order
from services.state.embedded.pins import EmbeddedPinStore
from services.state.pins import StoredPin
from services.state.store import StateUnavailable
from tests.kvmanager.harness import Harness

GROUP = "group"


class Pins(EmbeddedPinStore):
    """May be away, and lose what it has."""

    def __init__(self) -> None:
        self.now = 0.0
        self.away = False
        super().__init__(lambda: self.now)

    async def put(self, group: str, pin: StoredPin) -> None:
        self._check()
        await super().put(group, pin)

    async def remove(self, group: str, pin_id: str) -> None:
        self._check()
        await super().remove(group, pin_id)

    async def list(self, group: str) -> Sequence[StoredPin]:
        self._check()
        return await super().list(group)

    def _check(self) -> None:
        if self.away:
            raise StateUnavailable("away")

    async def ids(self) -> list[str]:
        return [pin.pin_id for pin in await super().list(GROUP)]


class Leader:
    """A core, and its keeper. Stands in for the driver."""

    def __init__(self, store: Pins, harness: Harness | None = None) -> None:
        self.harness = harness or Harness()
        self.manager = self.harness.manager
        self.keeper = PinKeeper(self, store, GROUP, lambda: self.harness.now)  # type: ignore[arg-type]

    def restore_pin(self, spec: RequestSpec, seconds_left: float) -> None:
        spec = replace(spec, sampling=0)  # the oracle knows seeds alone
        self.manager.restore_pin(spec, self.harness.now + seconds_left, self.harness.now)

    def pin(self, pin_id: str, ttl: float = 60.0) -> list[int]:
        prompt = self.harness.prompt(17)
        self.harness.pin(pin_id, prompt, ttl)
        self.harness.run()
        return prompt


def test_an_order_says_all_that_a_prefix_is_computed_from() -> None:
    spec = RequestSpec(
        (0, 0),
        [5, 6, 7],
        ((2, Scope(b"\x00salt", "shared:x", 1)), (1, Scope(b"\xff", "acme", 3))),
        "acme",
        max_tokens=1,
        n=1,
        sampling=common_pb2.SamplingParams(),
        pin=PinOrder("p", 12.5),
    )
    assert decode_order(encode_order(spec)) == spec


async def test_a_pin_is_noted_when_it_is_computed_and_forgotten_when_it_is_let_go() -> None:
    store = Pins()
    leader = Leader(store)
    leader.harness.pin("a", leader.harness.prompt(17))
    assert await leader.keeper.keep()
    assert await store.ids() == [], "it is not there yet"
    leader.harness.run()
    leader.pin("b")
    await leader.keeper.keep()
    assert await store.ids() == ["a", "b"]
    assert leader.manager.unpin("default", "a", leader.harness.now)
    await leader.keeper.keep()
    assert await store.ids() == ["b"]


async def test_the_next_leader_computes_it_again_under_the_same_id() -> None:
    store = Pins()
    first = Leader(store)
    prompt = first.pin("a")
    await first.keeper.keep()
    second = Leader(store)
    await second.keeper.keep()
    (pin,) = second.manager.list_pins("default")
    assert (pin.pin_id, pin.blocks) == ("a", None)
    second.harness.run()
    (pin,) = second.manager.list_pins("default")
    assert pin.blocks is not None
    assert pin.spec.prompt_token_ids == prompt
    assert await second.keeper.keep()
    assert await store.ids() == ["a"]
    second.harness.submit("hit", [*prompt, 1, 2], max_tokens=2)
    second.harness.run()
    assert second.harness.usage["hit"].cached_tokens == 16


async def test_it_waits_for_an_executor_and_ends_in_time() -> None:
    store = Pins()
    first = Leader(store)
    first.pin("a")
    await first.keeper.keep()
    (stored,) = await store.list(GROUP)
    await store.put(GROUP, StoredPin("a", 100.0, stored.order))
    second = Leader(store, Harness(num_executors=0))
    await second.keeper.keep()
    second.harness.attach()
    second.harness.run()
    (pin,) = second.manager.list_pins("default")
    assert pin.blocks is not None
    second.harness.expire(99.0)
    assert second.manager.list_pins("default")
    second.harness.expire(101.0)
    assert not second.manager.list_pins("default")
    await second.keeper.keep()
    assert await store.ids() == []


async def test_what_happens_while_the_store_is_away_is_made_good() -> None:
    store = Pins()
    leader = Leader(store)
    leader.pin("stays")
    leader.pin("goes")
    await leader.keeper.keep()
    store.away = True
    leader.pin("new")
    leader.manager.unpin("default", "goes", leader.harness.now)
    assert not await leader.keeper.keep()
    await EmbeddedPinStore.remove(store, GROUP, "stays")  # it loses something
    store.away = False
    assert await leader.keeper.keep()
    assert await store.ids() == ["new", "stays"]


async def test_a_store_that_was_away_at_the_start_is_read_when_it_is_there() -> None:
    store = Pins()
    first = Leader(store)
    first.pin("a")
    await first.keeper.keep()
    store.away = True
    second = Leader(store)
    second.pin("b")
    assert not await second.keeper.keep()
    store.away = False
    await second.keeper.keep()
    assert {pin.pin_id for pin in second.manager.list_pins("default")} == {"a", "b"}
    assert await store.ids() == ["a", "b"]


async def test_what_makes_no_sense_is_dropped() -> None:
    store = Pins()
    for number, order in enumerate((b"\xff", b"", encode_order(RequestSpec(0, [], pin=PinOrder("p", 1.0))))):
        await store.put(GROUP, StoredPin(str(number), 60.0, order))
    leader = Leader(store)
    await leader.keeper.keep()
    assert await store.ids() == []
    assert not list(leader.manager.pins)


def test_a_pin_that_its_gateway_orders_again_takes_the_place_of_the_one_that_is_there() -> None:
    """The KV manager was lost after the pin was noted and before its gateway heard of it."""
    harness = Harness()
    prompt = harness.prompt(17)
    spec = RequestSpec("again", prompt, sampling=1, pin=PinOrder("a", 60.0), resubmitted=True)
    harness.manager.restore_pin(RequestSpec("first", prompt, sampling=1, pin=PinOrder("a", 60.0)), 50.0, 0.0)
    harness.step()
    harness.take(harness.manager.submit(spec, harness.now))
    harness.specs["again"] = spec
    harness.run()
    assert harness.usage["again"].cached_tokens <= 16
    (pin,) = harness.manager.list_pins("default")
    assert pin.blocks is not None
    assert pin.expires == 60.0
