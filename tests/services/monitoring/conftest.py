"""What a gateway shows of KV managers around oracle executors, all in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import pytest
from google.protobuf.message import Message

from octavo.v1 import kvmanager_pb2, monitoring_pb2
from services.gateway.backends import Backends
from services.gateway.monitoring.monitoring import Monitoring
from services.gateway.viewers import Viewer
from services.rpc.channel import inner_channel
from services.state.embedded.prefix_directory import EmbeddedPrefixDirectory
from tests.services.kvmanager.conftest import Rig, make_rig
from tests.services.kvmanager.inner_gateway import PATIENCE

__all__ = ["make_rig"]

OPERATOR = Viewer(None)
ACME, BETA = Viewer("acme"), Viewer("beta")
JOINED = {"acme": frozenset({"docs"}), "beta": frozenset({"docs", "law"})}


def text_of(token_ids: Sequence[int]) -> str:
    """The tests' tokenizer: a letter for each token."""
    return "".join(chr(ord("A") + token_id) for token_id in token_ids)


class Sight:
    """Who looks, and at what."""

    def __init__(self, rigs: Sequence[Rig]) -> None:
        addresses = [[rig.config.address] for rig in rigs]
        directory = EmbeddedPrefixDirectory(lambda: 0.0)
        self.backends = Backends(
            addresses, lambda address: inner_channel(address, "kvmanager"), directory, PATIENCE, 1000.0, lambda: None
        )
        self.joined = dict(JOINED)
        self.monitoring = Monitoring(
            self.backends.links,
            model=lambda: self.backends.model,
            ready=lambda: self.backends.ready,
            state_available=lambda: True,
            namespaces=lambda tenant: self.joined.get(tenant, frozenset()),
            decode=text_of,
        )

    async def start(self) -> None:
        self._tasks = [asyncio.create_task(self.backends.run())]
        while not all(link.open for link in self.backends.links):
            assert not any(task.done() for task in self._tasks)
            await asyncio.sleep(0.005)
        self._tasks.append(asyncio.create_task(self.monitoring.run()))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def status(self, viewer: Viewer) -> monitoring_pb2.Status:
        """How it is at this moment."""
        return (await self.first_status(viewer)).status

    async def first_status(self, viewer: Viewer) -> monitoring_pb2.WatchStatusResponse:
        request = monitoring_pb2.WatchStatusRequest()
        request.interval.FromMilliseconds(100)
        async for response in self.monitoring.watch_status(request, viewer):
            return response
        raise AssertionError("nothing was said")

    async def status_when(
        self, viewer: Viewer, condition: Callable[[monitoring_pb2.Status], bool]
    ) -> monitoring_pb2.Status:
        """The first one for which that holds."""
        request = monitoring_pb2.WatchStatusRequest()
        request.interval.FromMilliseconds(100)

        async def find() -> monitoring_pb2.Status:
            async for response in self.monitoring.watch_status(request, viewer):
                if condition(response.status):
                    return response.status
            raise AssertionError("it ended")

        return await asyncio.wait_for(find(), PATIENCE)


MakeSight = Callable[..., Awaitable[Sight]]


@pytest.fixture
async def make_sight() -> AsyncIterator[MakeSight]:
    """Starts to look at these KV managers."""
    async with AsyncExitStack() as stack:

        async def make(*rigs: Rig) -> Sight:
            sight = Sight(rigs)
            await sight.start()
            stack.push_async_callback(sight.stop)
            return sight

        yield make


def span(num_tokens: int, owner: str, narrowness: int = 1) -> kvmanager_pb2.ScopeSpan:
    """Tokens of one scope."""
    return kvmanager_pb2.ScopeSpan(num_tokens=num_tokens, salt=owner.encode(), owner=owner, narrowness=narrowness)


def without_time(message: Message) -> bytes:
    """All that a message says but when."""
    copy = type(message)()
    copy.CopyFrom(message)
    copy.ClearField("time")
    return copy.SerializeToString()
