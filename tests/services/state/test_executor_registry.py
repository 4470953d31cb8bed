"""Which executors a group has."""

from __future__ import annotations

import pytest

import services.state.embedded.executor_registry
import services.state.redis.executor_registry
from services.state.executor_registry import RegisteredExecutor
from services.state.store import StateStore
from tests.services.state.conftest import OpenStore
from tests.services.state.waiting import eventually


async def test_who_registered_is_listed_by_group(open_view: OpenStore) -> None:
    writer, reader = (await open_view()).executors, (await open_view()).executors
    assert list(await reader.list("g")) == []
    await writer.register("g", "10.0.0.2:1", "i2")
    await writer.register("g", "10.0.0.1:1", "an incarnation with blanks")
    await writer.register("other", "10.0.0.1:1", "i3")
    await writer.register("g", "10.0.0.2:1", "i2 again")
    assert list(await reader.list("g")) == [
        RegisteredExecutor("10.0.0.1:1", "an incarnation with blanks"),
        RegisteredExecutor("10.0.0.2:1", "i2 again"),
    ]
    await writer.remove("g", "10.0.0.1:1")
    assert list(await reader.list("g")) == [RegisteredExecutor("10.0.0.2:1", "i2 again")]


async def test_who_does_not_renew_is_gone_and_others_stay(store: StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.executors.register("g", "stays", "i1")
    for module in (services.state.embedded.executor_registry, services.state.redis.executor_registry):
        monkeypatch.setattr(module, "LEASE_SECONDS", 0.03)
    await store.executors.register("g", "goes", "i2")
    monkeypatch.undo()
    await store.executors.register("g", "stays", "i1")

    async def one_left() -> bool:
        return list(await store.executors.list("g")) == [RegisteredExecutor("stays", "i1")]

    await eventually(one_left, "the end of a lease")
