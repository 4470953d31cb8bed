"""Physical blocks as they change, as the operator sees them and as a tenant sees them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from octavo.v1 import common_pb2, memory_pb2, monitoring_pb2
from services.gateway.monitoring.monitoring import Monitoring
from services.gateway.viewers import Viewer
from tests.services.kvmanager.conftest import MakeRig
from tests.services.kvmanager.inner_gateway import PATIENCE
from tests.services.kvmanager.oracle_service import OracleService
from tests.services.kvmanager.test_looking_in import prompt_of
from tests.services.monitoring.conftest import ACME, BETA, OPERATOR, MakeSight, span


class Picture:
    """What somebody knows who has heard nothing but the messages."""

    def __init__(self, monitoring: Monitoring, viewer: Viewer) -> None:
        request = monitoring_pb2.WatchBlocksRequest()
        request.interval.FromMilliseconds(100)
        self.messages: list[monitoring_pb2.WatchBlocksResponse] = []
        self.blocks: dict[str, dict[tuple[int, int], memory_pb2.Block]] = {}
        self._watch = monitoring.watch_blocks(request, viewer)

    async def run(self) -> None:
        async for message in self._watch:
            self.messages.append(message)
            if message.removed:
                del self.blocks[message.executor]
                continue
            if message.snapshot:
                self.blocks[message.executor] = {}
            changed = {(block.tier, block.block_id): block for block in message.blocks}
            self.blocks[message.executor].update(changed)

    def owned(self) -> list[tuple[str, int, bool]]:
        """Blocks that are not free: owner, reference count, cached."""
        blocks = [block for known in self.blocks.values() for block in known.values()]
        return sorted((each.owner, each.reference_count, each.cached) for each in blocks if each.owner)

    async def until_owned(self, expected: list[tuple[str, int, bool]]) -> None:
        end = asyncio.get_running_loop().time() + PATIENCE
        while self.owned() != sorted(expected):
            assert asyncio.get_running_loop().time() < end, f"{self.owned()} is not {expected}"
            await asyncio.sleep(0.01)


@asynccontextmanager
async def picture(monitoring: Monitoring, viewer: Viewer) -> AsyncIterator[Picture]:
    seen = Picture(monitoring, viewer)
    running = asyncio.create_task(seen.run())
    try:
        yield seen
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await seen._watch.aclose()  # type: ignore[attr-defined]


async def test_each_sees_its_own_blocks_and_those_of_namespaces_it_has_joined(
    make_rig: MakeRig, make_sight: MakeSight
) -> None:
    one = OracleService(num_host_blocks=8)
    rig = await make_rig(one)
    sight = await make_sight(rig)
    docs, law, own = span(8, "shared:docs", 0), span(8, "shared:law", 0), span(4, "beta")
    async with (
        picture(sight.monitoring, OPERATOR) as everything,
        picture(sight.monitoring, ACME) as acme,
        picture(sight.monitoring, BETA) as beta,
    ):
        await rig.gateway.generate(prompt_of(1, 12), max_tokens=1, tenant="beta", spans=[docs, own])
        await rig.gateway.generate(prompt_of(2, 12), max_tokens=1, tenant="beta", spans=[law, own])
        cached = [("shared:docs", 0, True)] * 2 + [("shared:law", 0, True)] * 2 + [("beta", 0, True)] * 2
        await everything.until_owned(cached)
        assert len(everything.blocks[one.address]) == 108
        await beta.until_owned(cached)
        await acme.until_owned([("shared:docs", 0, True)] * 2)
        heard = len(acme.messages)
        one.hold()
        await rig.gateway.submit(prompt_of(1, 13), max_tokens=20, tenant="beta", spans=[docs, own])
        used = [("shared:docs", 1, True)] * 2 + [("shared:law", 0, True)] * 2
        await everything.until_owned([*used, ("beta", 0, True), ("beta", 1, True), ("beta", 1, False)])
        await beta.until_owned([*cached[:4], ("beta", 0, True), ("beta", 1, True), ("beta", 1, False)])
        one.go_on()
        await rig.when_idle()
        sight.joined["acme"] = frozenset()
        await acme.until_owned([])
        # Whether others use what is shared, and what else they do, is not told.
        assert len(acme.messages) == heard + 1
        assert not any(b"beta" in message.SerializeToString() for message in acme.messages)
        assert all(block.tier == common_pb2.TIER_DEVICE for message in acme.messages for block in message.blocks)


async def test_executors_that_go_and_come_back(make_rig: MakeRig, make_sight: MakeSight) -> None:
    one, two = OracleService(), OracleService(num_blocks=50)
    rig = await make_rig(one, two)
    sight = await make_sight(rig)
    async with picture(sight.monitoring, OPERATOR) as everything:
        await rig.eventually(lambda: len(everything.blocks) == 2, "both are seen")
        await one.kill()
        await rig.eventually(lambda: set(everything.blocks) == {two.address}, "one is gone")
        await one.start()
        await rig.eventually(lambda: len(everything.blocks.get(one.address, ())) == 100, "it is back")
        assert everything.messages[-1].snapshot
        assert everything.messages[-1].num_device_blocks == 100


async def test_nobody_is_asked_while_nobody_watches(make_rig: MakeRig, make_sight: MakeSight) -> None:
    rig = await make_rig(OracleService())
    sight = await make_sight(rig)
    journals = next(iter(rig.manager.replicas.values())).memory.pool.journals
    async with picture(sight.monitoring, OPERATOR) as first, picture(sight.monitoring, ACME) as second:
        await rig.eventually(lambda: bool(first.blocks and second.blocks), "both see them")
        assert len(journals) == 1
    await rig.eventually(lambda: not journals, "the KV manager takes no more notes")
    async with picture(sight.monitoring, OPERATOR) as again:
        await rig.eventually(lambda: bool(again.blocks), "it is seen again")
