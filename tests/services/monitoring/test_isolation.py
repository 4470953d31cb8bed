"""Two tenants that crowd each other out of a small memory: nothing that one of them sees has a word of the other."""

from __future__ import annotations

import asyncio
import random
import secrets

import pytest

from octavo.v1 import monitoring_pb2
from services.gateway.viewers import Viewer
from services.rpc.status import RpcError
from tests.oracle import VOCAB_SIZE
from tests.services.kvmanager.conftest import MakeRig, Rig
from tests.services.kvmanager.oracle_service import OracleService
from tests.services.monitoring.conftest import OPERATOR, MakeSight, Sight, span, text_of
from tests.services.monitoring.test_blocks import picture

Tenant = str


class Crowd:
    """Requests of some tenants, with prompts of their own below one that they share."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self._rig = rig
        self._random = random.Random(seed)
        self.docs = self._prompt(8)
        self.request_ids: dict[Tenant, list[str]] = {}
        self.prompts: dict[Tenant, list[list[int]]] = {}

    def _prompt(self, length: int) -> list[int]:
        return self._random.choices(range(VOCAB_SIZE), k=length)

    async def submit(self, tenant: Tenant, **fields: object) -> None:
        own, request_id = self._prompt(24), secrets.token_hex(16)
        self.request_ids.setdefault(tenant, []).append(request_id)
        self.prompts.setdefault(tenant, []).append(own)
        spans = [span(8, "shared:docs", 0), span(24, tenant)]
        await self._rig.gateway.submit([*self.docs, *own], tenant=tenant, request_id=request_id, spans=spans, **fields)

    def secrets_of(self, tenant: Tenant) -> list[bytes]:
        """What nobody else may see: name, request ids, and any eight tokens of a prompt, as text and as numbers."""
        texts = [text_of(prompt[first : first + 8]) for prompt in self.prompts[tenant] for first in (0, 8, 16)]
        return [each.encode() for each in (tenant, *self.request_ids[tenant], *texts)]


async def all_that_is_shown(sight: Sight, viewer: Viewer, request_ids: list[str]) -> bytes:
    """What the five calls say, all of it."""
    said = [(await sight.first_status(viewer)).SerializeToString()]
    listed = monitoring_pb2.ListRequestsRequest(num_ended=1000, include_blocks=True)
    said.append((await sight.monitoring.list_requests(listed, viewer)).SerializeToString())
    tree = await sight.monitoring.prefix_tree(monitoring_pb2.GetPrefixTreeRequest(max_nodes=10_000), viewer)
    said.append(tree.SerializeToString())
    for request_id in request_ids:
        explained = monitoring_pb2.ExplainRequestRequest(request_id=request_id)
        try:
            said.append((await sight.monitoring.explain(explained, viewer)).SerializeToString())
        except RpcError as error:
            said.append(error.message.encode())
    return b"\n".join(said)


@pytest.fixture
async def swapping(make_rig: MakeRig) -> Rig:
    executor = OracleService(num_blocks=30, num_host_blocks=60)
    executor.speeds.prefill_tokens_per_s, executor.speeds.copy_blocks_per_s = 1000.0, 1e6
    executor.speeds.swap_in_blocks_per_s = executor.speeds.swap_out_blocks_per_s = 1e6
    return await make_rig(executor)


async def test_nothing_of_another_tenant_is_shown_by_any_call(swapping: Rig, make_sight: MakeSight) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    acme, beta = f"acme-{secrets.token_hex(6)}", f"beta-{secrets.token_hex(6)}"
    sight = await make_sight(swapping)
    sight.joined = {acme: frozenset({"docs"}), beta: frozenset({"docs"})}
    crowd = Crowd(swapping, seed)
    shown: dict[Tenant, list[bytes]] = {acme: [], beta: []}
    async with (
        picture(sight.monitoring, Viewer(acme)) as acme_blocks,
        picture(sight.monitoring, Viewer(beta)) as beta_blocks,
    ):
        for number in range(12):
            await crowd.submit((acme, beta)[number % 2], max_tokens=30, n=1 + number % 3 // 2)
        while not swapping.manager.idle:
            for tenant in (acme, beta):
                ids = [each for ids in crowd.request_ids.values() for each in ids]
                shown[tenant].append(await all_that_is_shown(sight, Viewer(tenant), ids))
            await asyncio.sleep(0.002)
        assert swapping.manager.counters.preemptions
        for tenant in (acme, beta):
            ids = [each for ids in crowd.request_ids.values() for each in ids]
            shown[tenant].append(await all_that_is_shown(sight, Viewer(tenant), ids))
        for tenant, blocks in ((acme, acme_blocks), (beta, beta_blocks)):
            await swapping.eventually(lambda blocks=blocks: bool(blocks.owned()), "blocks are seen")  # type: ignore[misc]
            shown[tenant] += (message.SerializeToString() for message in blocks.messages)
    everything = await all_that_is_shown(sight, OPERATOR, crowd.request_ids[acme])
    for tenant, other in ((acme, beta), (beta, acme)):
        own = b"\n".join(shown[tenant])
        leaks = [secret for secret in crowd.secrets_of(other) if secret in own]
        assert not leaks
        assert tenant.encode() in own
        assert all(request_id.encode() in own for request_id in crowd.request_ids[tenant])
        assert sum(secret in everything for secret in crowd.secrets_of(tenant)) > len(crowd.request_ids[tenant])


async def test_what_a_tenant_sees_of_its_own_life_has_no_number_of_others(swapping: Rig, make_sight: MakeSight) -> None:
    sight = await make_sight(swapping)
    crowd = Crowd(swapping, secrets.randbits(32))
    for number in range(8):
        await crowd.submit(("acme", "beta")[number % 2], max_tokens=40)
    await swapping.eventually(lambda: len(swapping.manager.requests) == 8, "all are here")
    listed = monitoring_pb2.ListRequestsRequest(num_ended=100)
    while not swapping.manager.idle:
        views = (await sight.monitoring.list_requests(listed, Viewer("acme"))).requests
        reasons = [view.reason for view in views if view.state != monitoring_pb2.REQUEST_STATE_ENDED]
        assert not any(character.isdigit() for reason in reasons for character in reason)
        await asyncio.sleep(0.002)
