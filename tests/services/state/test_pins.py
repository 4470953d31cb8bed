"""Pins that the next leader of a group finds."""

from __future__ import annotations

import random

from services.state.pins import StoredPin
from services.state.store import StateStore
from tests.services.state.conftest import OpenStore
from tests.services.state.waiting import eventually


async def test_pins_are_found_by_group_with_the_time_that_is_left(open_view: OpenStore) -> None:
    writer, reader = (await open_view()).pins, (await open_view()).pins
    assert list(await reader.list("pins")) == []
    order = bytes(range(256)) + b" 12 \n" + random.randbytes(1000)
    await writer.put("pins", StoredPin("b", 30.0, order))
    await writer.put("pins", StoredPin("a b", 500.0, b""))
    await writer.put("other", StoredPin("c", 30.0, b"c"))
    found = list(await reader.list("pins"))
    assert [(pin.pin_id, pin.order) for pin in found] == [("a b", b""), ("b", order)]
    assert 400 < found[0].seconds_left <= 500
    assert 20 < found[1].seconds_left <= 30
    await writer.put("pins", StoredPin("b", 60.0, b"again"))
    await writer.remove("pins", "a b")
    await writer.remove("pins", "nobody")
    (pin,) = await reader.list("pins")
    assert (pin.pin_id, pin.order) == ("b", b"again")
    assert 40 < pin.seconds_left <= 60


async def test_a_pin_whose_time_is_over_is_gone_and_others_stay(store: StateStore) -> None:
    await store.pins.put("ends", StoredPin("stays", 60.0, b"s"))
    await store.pins.put("ends", StoredPin("goes", 0.05, b"g"))

    async def one_left() -> bool:
        return [pin.pin_id for pin in await store.pins.list("ends")] == ["stays"]

    await eventually(one_left, "the end of a pin")
    await store.pins.put("ends", StoredPin("new", 60.0, b"n"))
    assert [pin.pin_id for pin in await store.pins.list("ends")] == ["new", "stays"]
