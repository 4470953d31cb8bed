"""What the prefix caches hold, as the operator sees it and as a tenant sees it."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from octavo.v1 import monitoring_pb2
from services.gateway.viewers import Viewer
from services.rpc.status import RpcError
from tests.services.kvmanager.conftest import MakeRig, Rig
from tests.services.kvmanager.oracle_service import OracleService
from tests.services.kvmanager.test_looking_in import prompt_of
from tests.services.monitoring.conftest import ACME, BETA, OPERATOR, MakeSight, Sight, span, text_of


async def tree(sight: Sight, viewer: Viewer, **fields: Any) -> monitoring_pb2.GetPrefixTreeResponse:
    return await sight.monitoring.prefix_tree(monitoring_pb2.GetPrefixTreeRequest(**fields), viewer)


async def ask(rig: Rig, tenant: str, *parts: tuple[list[int], str, int]) -> None:
    """A prompt of parts: tokens, whose they are, narrowness."""
    spans = [span(len(tokens), owner, narrowness) for tokens, owner, narrowness in parts]
    await rig.gateway.generate(
        [each for tokens, *_ in parts for each in tokens], max_tokens=1, tenant=tenant, spans=spans
    )


DOCS, LAW = (prompt_of(3, 16), "shared:docs", 0), (prompt_of(7, 8), "shared:law", 0)


def shown(answer: monitoring_pb2.GetPrefixTreeResponse) -> list[tuple[str, str, int, str, int]]:
    return sorted((node.owner, node.scope, node.num_blocks, node.text, node.hits) for node in answer.nodes)


async def test_each_sees_what_it_may_reuse(make_rig: MakeRig, make_sight: MakeSight) -> None:
    rig = await make_rig(OracleService())
    sight = await make_sight(rig)
    for _ in range(2):
        await ask(rig, "acme", DOCS, (prompt_of(11, 9), "acme", 1))
    await ask(rig, "beta", DOCS, (prompt_of(13, 9), "beta", 1))
    await ask(rig, "beta", (DOCS[0][:8], *DOCS[1:]), (prompt_of(17, 9), "beta", 3))
    await ask(rig, "beta", LAW, (prompt_of(19, 5), "beta", 2))
    docs, law = text_of(DOCS[0]), text_of(LAW[0])
    mine, theirs = text_of(prompt_of(11, 8)), text_of(prompt_of(13, 8))
    everything = await tree(sight, OPERATOR)
    assert shown(everything) == sorted(
        [
            ("shared:docs", "shared", 2, docs[:8], 3),
            ("shared:docs", "shared", 2, docs[8:], 2),
            ("acme", "tenant", 2, mine, 1),
            ("beta", "tenant", 2, theirs, 0),
            ("beta", "request", 2, text_of(prompt_of(17, 8)), 0),
            ("shared:law", "shared", 2, law, 0),
            ("beta", "app", 1, text_of(prompt_of(19, 4)), 0),
        ]
    )
    uses = {(use.owner, use.scope): use for use in everything.scopes}
    docs_use = uses["shared:docs", "shared"]
    assert (docs_use.queried_tokens, docs_use.hit_tokens, docs_use.cached_blocks) == (56, 40, 4)

    own = await tree(sight, ACME)
    # Where others' prompts go on from is not to be seen, nor how often they are found.
    assert shown(own) == sorted([("shared:docs", "shared", 4, docs, 0), ("acme", "tenant", 2, mine, 1)])
    assert own.nodes[1].parent_identity_prefix == own.nodes[0].identity_prefix
    assert [(use.owner, use.queried_tokens, use.hit_tokens, use.cached_blocks) for use in own.scopes] == [
        ("acme", 18, 8, 2),
        ("shared:docs", 32, 16, 4),
    ]
    sight.joined["acme"] = frozenset()
    left = await tree(sight, ACME)
    assert shown(left) == [("acme", "tenant", 2, mine, 1)]
    assert not left.nodes[0].parent_identity_prefix
    assert [use.owner for use in left.scopes] == ["acme"]
    assert {node.owner for node in (await tree(sight, BETA)).nodes} == {"beta", "shared:docs", "shared:law"}


async def test_the_largest_nodes_of_all_groups(make_rig: MakeRig, make_sight: MakeSight) -> None:
    rigs = [await make_rig(OracleService()), await make_rig(OracleService())]
    sight = await make_sight(*rigs)
    for number, length in enumerate((5, 9, 13, 17, 21, 25)):
        await ask(rigs[number % 2], "acme", (prompt_of(3 * number, length), "acme", 1))
    answer = await tree(sight, OPERATOR, max_nodes=4)
    assert sorted(node.num_blocks for node in answer.nodes) == [3, 4, 5, 6]
    assert {node.executor.partition("/")[0] for node in answer.nodes} == {"1", "2"}
    assert answer.nodes_left_out == 2
    assert (await tree(sight, OPERATOR)).nodes_left_out == 0


@pytest.mark.parametrize("max_nodes", [0, -1, 10_001])
async def test_numbers_have_limits(make_rig: MakeRig, make_sight: MakeSight, max_nodes: int) -> None:
    sight = await make_sight(await make_rig(OracleService()))
    with pytest.raises(RpcError) as refused:
        await tree(sight, OPERATOR, max_nodes=max_nodes)
    assert (refused.value.code, refused.value.field) == (grpc.StatusCode.INVALID_ARGUMENT, "max_nodes")
