"""Which group a request goes to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import pytest

from octavo.v1 import kvmanager_pb2
from services.gateway.backends import Backends
from services.gateway.prefix_identities import prefix_identities
from services.gateway.request_stream import RequestStream
from services.rpc.channel import inner_channel
from services.state.embedded.prefix_directory import EmbeddedPrefixDirectory
from services.state.store import StateUnavailable
from tests.services.gateway.prepared_requests import prepared
from tests.services.scripted_kvmanager import MODEL, ScriptedKVManager, columns, eventually, serving

BLOCK = MODEL.block_size
PROMPT = list(range(100, 100 + 10 * BLOCK))


class Directory(EmbeddedPrefixDirectory):
    """May be away, or answer never."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.away = False
        self.hangs = False

    async def longest(self, model: str, identities: Sequence[bytes]) -> Mapping[str, int]:
        if self.away:
            raise StateUnavailable("away")
        if self.hangs:
            await asyncio.sleep(3600)
        return await super().longest(model, identities)


class Groups:
    """Two groups, `left` and `right`."""

    def __init__(self, backends: Backends, kvmanagers: dict[str, ScriptedKVManager], directory: Directory) -> None:
        self.backends = backends
        self.kvmanagers = kvmanagers
        self.directory = directory

    async def submit(self, prompt: list[int]) -> tuple[str, RequestStream]:
        """Where the request went."""
        before = {name: len(each.submissions) for name, each in self.kvmanagers.items()}
        stream = self.backends.stream(prepared(prompt), None)
        await self.backends.submit(stream)

        def gone_to() -> list[str]:
            return [name for name, each in self.kvmanagers.items() if len(each.submissions) > before[name]]

        await eventually(gone_to)
        (name,) = gone_to()
        return name, stream

    async def publish(self, group: str, num_blocks: int, prompt: Sequence[int] = PROMPT) -> None:
        """The group has the first blocks of a prompt."""
        identities = prefix_identities(prepared(list(prompt)), BLOCK)[:num_blocks]
        await self.directory.publish(MODEL.name, group, identities, [])


@asynccontextmanager
async def two_groups() -> AsyncIterator[Groups]:
    kvmanagers = {name: ScriptedKVManager(lambda submission: []) for name in ("left", "right")}
    directory = Directory()
    async with AsyncExitStack() as stack:
        addresses = []
        for name, kvmanager in kvmanagers.items():
            kvmanager.backend = kvmanager_pb2.BackendState(ready=True, model=MODEL, epoch=1, group=name)
            addresses.append([await stack.enter_async_context(serving(kvmanager))])
        backends = Backends(
            addresses, lambda address: inner_channel(address, "kvmanager"), directory, 60.0, 1000.0, lambda: None
        )
        running = asyncio.ensure_future(backends.run())
        await eventually(lambda: all(link.open for link in backends.links))
        yield Groups(backends, kvmanagers, directory)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("group", ["left", "right"])
async def test_it_goes_where_its_prefix_is(group: str) -> None:
    async with two_groups() as here:
        await here.publish(group, 6)
        assert (await here.submit(PROMPT))[0] == group


async def test_requests_with_a_common_prefix_stay_together() -> None:
    """Before the directory knows: the first one is about to compute it."""
    async with two_groups() as here:
        first, stream = await here.submit(PROMPT)
        other = "right" if first == "left" else "left"
        here.kvmanagers[first].tell(columns(here.kvmanagers[first].submissions[0], [(0, 0, 1)]))
        await stream.next()
        assert (await here.submit([*PROMPT, 5]))[0] == first
        stream.close()
        assert (await here.submit(PROMPT[::-1]))[0] == other


async def test_a_long_queue_counts_more_than_a_short_prefix() -> None:
    async with two_groups() as here:
        await here.publish("left", 2)
        assert (await here.submit(PROMPT))[0] == "left"
        assert (await here.submit([*PROMPT[: 2 * BLOCK], *[7] * 8 * BLOCK]))[0] == "right"


@pytest.mark.parametrize("failure", ["away", "hangs"])
async def test_without_a_directory_requests_are_spread(failure: str) -> None:
    async with two_groups() as here:
        setattr(here.directory, failure, True)
        names = [(await here.submit([number] * 2 * BLOCK))[0] for number in range(4)]
        assert sorted(names) == ["left", "left", "right", "right"]


async def test_one_group_is_enough_to_serve() -> None:
    async with two_groups() as here:
        await here.publish("left", 9)
        here.kvmanagers["left"].refusal = (grpc.StatusCode.UNAVAILABLE, "STANDBY")
        here.kvmanagers["left"].lose_gateways()
        await eventually(lambda: not all(link.open for link in here.backends.links))
        assert here.backends.ready
        assert (await here.submit(PROMPT))[0] == "right"


async def test_pins_of_all_groups() -> None:
    async with two_groups() as here:
        for name, kvmanager in here.kvmanagers.items():
            stream = prepared(PROMPT)
            submission = kvmanager_pb2.Submission(
                tenant="acme", prompt_token_ids=b"\0" * 4 * len(stream.prompt_token_ids)
            )
            submission.pin.pin_id = f"pin on the {name}"
            kvmanager.keep(submission)
        assert {pin.pin_id for pin in await here.backends.pins("acme")} == {"pin on the left", "pin on the right"}
        await here.backends.unpin("acme", "pin on the right")
        assert [pin.pin_id for pin in await here.backends.pins("acme")] == ["pin on the left"]
