"""MonitoringService of real processes: who sees what of two tenants whose requests preempt one another."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from gateway.api_keys import ApiKey, new_key
from gateway.tenants import Tenant
from octavo.client import OctavoError
from octavo.v1 import monitoring_pb2, monitoring_pb2_grpc
from services.state.tenants_file import TenantsFile
from tests.services.e2e.processes import Processes
from tests.services.e2e.stack import Stack, make_executor

pytestmark = pytest.mark.slow

NUM_BLOCKS = 24
"""Of 16 tokens: room for three sequences of 128 tokens."""

ACME, BETA = f"acme-{secrets.token_hex(4)}", f"beta-{secrets.token_hex(4)}"
OPERATOR_KEY = secrets.token_hex(24)

Kind = monitoring_pb2


class Watched:
    """The stack, whose keys there are, and what was asked of it.

    Attributes:
        requests: ids, by tenant.
    """

    def __init__(self, processes: Processes, model: Path, folder: Path) -> None:
        path = folder / "tenants.json"
        self.keys = {}
        for name in (ACME, BETA):
            self.keys[name], key_id, secret_hash = new_key(secrets.randbits)
            tenant = Tenant(name, (ApiKey(key_id, secret_hash),))
            asyncio.run(TenantsFile(path).change(name, lambda _, tenant=tenant: tenant))
        self.stack = Stack(
            processes,
            model,
            make_executor(processes, model, kv_memory=f"{8 * NUM_BLOCKS}KiB"),
            environment={"OCTAVO_OPERATOR_KEY": OPERATOR_KEY},
            gateway={"tenants_file": path},
            kvmanager={"max_batched_tokens": 64, "max_sequences": 16},
        )
        self.stack.start()
        self.channel = grpc.insecure_channel(self.stack.gateway.address)
        self.stub = monitoring_pb2_grpc.MonitoringServiceStub(self.channel)
        self.requests: dict[str, list[str]] = {ACME: [], BETA: []}

    def crowd(self) -> None:
        """Ten requests that each end with a third of the memory."""
        calls = []
        for number in range(10):
            tenant = (ACME, BETA)[number % 2]
            self.requests[tenant].append(secrets.token_hex(12))
            calls.append(
                self.stack.caller.start(
                    f"{number} {secrets.token_hex(8)} is the number of the page",
                    max_tokens=90,
                    ignore_eos=True,
                    request_id=self.requests[tenant][-1],
                    metadata=self.bearer(self.keys[tenant]),
                )
            )
        for call in calls:
            call.result()

    def bearer(self, key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"}

    def ask(self, key: str, method: str, request: Any) -> Any:
        call = getattr(self.stub, method)
        return call(request, metadata=tuple(self.bearer(key).items()), timeout=20)

    def explain(self, key: str, request_id: str) -> monitoring_pb2.Timeline:
        request = monitoring_pb2.ExplainRequestRequest(request_id=request_id)
        timeline: monitoring_pb2.Timeline = self.ask(key, "ExplainRequest", request).timeline
        return timeline

    def list(self, key: str) -> list[monitoring_pb2.RequestView]:
        return list(self.ask(key, "ListRequests", monitoring_pb2.ListRequestsRequest(num_ended=100)).requests)

    def first(self, key: str, method: str, request: Any) -> Any:
        stream = self.ask(key, method, request)
        try:
            return next(stream)
        finally:
            stream.cancel()

    def close(self) -> None:
        self.channel.close()
        self.stack.close()
        self.stack.executor.kill()


@pytest.fixture(scope="module")
def watched(processes: Processes, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    watched = Watched(processes, model, tmp_path_factory.mktemp("monitoring"))
    watched.crowd()
    yield watched
    watched.close()


def test_a_preempted_request_is_explained_by_its_id(watched: Watched) -> None:
    listed = {view.request_id: view for view in watched.list(OPERATOR_KEY)}
    assert set(listed) == {*watched.requests[ACME], *watched.requests[BETA]}
    preempted = next(view for view in listed.values() if view.preemptions)
    told = watched.explain(OPERATOR_KEY, preempted.request_id)
    kinds = [each.kind for each in told.decisions]
    assert kinds[0] == Kind.DECISION_KIND_QUEUED
    assert kinds[-1] == Kind.DECISION_KIND_FINISHED
    assert kinds.count(Kind.DECISION_KIND_PREEMPTED) == preempted.preemptions
    assert kinds.count(Kind.DECISION_KIND_ADMITTED) == preempted.preemptions + 1
    assert kinds.count(Kind.DECISION_KIND_FIRST_TOKEN) == 1
    times = [each.at.ToNanoseconds() for each in told.decisions]
    assert times == sorted(times)
    for decision in told.decisions:
        if decision.kind == Kind.DECISION_KIND_PREEMPTED:
            assert decision.reason.startswith("its blocks were ")
            assert "for want of free blocks" in decision.reason
            assert any(request_id in decision.reason for request_id in listed)
    assert (told.decisions[-1].reason, told.decisions[-1].tokens) == ("length", 90)
    assert told.request.executor == watched.stack.executor.address


def test_a_tenant_sees_its_own_and_nothing_of_the_other(watched: Watched) -> None:
    for tenant, other in ((ACME, BETA), (BETA, ACME)):
        key = watched.keys[tenant]
        said: list[Any] = [*watched.list(key), *(watched.explain(key, each) for each in watched.requests[tenant])]
        assert {view.request_id for view in watched.list(key)} == set(watched.requests[tenant])
        for request_id in watched.requests[other]:
            with pytest.raises(grpc.RpcError) as refused:
                watched.explain(key, request_id)
            assert OctavoError.from_rpc(refused.value).status is grpc.StatusCode.NOT_FOUND
        tree = watched.ask(key, "GetPrefixTree", monitoring_pb2.GetPrefixTreeRequest())
        assert {node.owner for node in tree.nodes} == {tenant}
        assert any("is the number" in node.text for node in tree.nodes)
        status = watched.first(key, "WatchStatus", monitoring_pb2.WatchStatusRequest())
        assert status.status.counters.prompt_tokens
        assert [each.memory.owner for each in status.status.tenants] == [tenant]
        blocks = watched.first(key, "WatchBlocks", monitoring_pb2.WatchBlocksRequest())
        assert {block.owner for block in blocks.blocks} <= {"", tenant}
        said += [tree, status, blocks]
        shown = b"".join(message.SerializeToString() for message in said)
        assert not [secret for secret in (other, *watched.requests[other]) if secret.encode() in shown]


def test_the_operator_sees_all_and_asks_for_no_answers(watched: Watched) -> None:
    status = watched.first(OPERATOR_KEY, "WatchStatus", monitoring_pb2.WatchStatusRequest()).status
    assert {ACME, BETA} <= {each.memory.owner for each in status.tenants}
    assert status.counters.generated_tokens >= 900
    tree = watched.ask(OPERATOR_KEY, "GetPrefixTree", monitoring_pb2.GetPrefixTreeRequest())
    assert {node.owner for node in tree.nodes} == {ACME, BETA}
    blocks = watched.first(OPERATOR_KEY, "WatchBlocks", monitoring_pb2.WatchBlocksRequest())
    assert blocks.snapshot
    assert blocks.num_device_blocks == NUM_BLOCKS
    assert {block.owner for block in blocks.blocks} == {"", ACME, BETA}
    call = watched.stack.caller.start("hello", metadata=watched.bearer(OPERATOR_KEY), max_tokens=1)
    with pytest.raises(grpc.RpcError) as refused:
        call.result()
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    for key in ("", secrets.token_hex(24)):
        with pytest.raises(grpc.RpcError) as refused:
            watched.list(key)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert OPERATOR_KEY not in watched.stack.gateway.output() + watched.stack.kvmanager.output()


def test_what_is_no_request_is_refused_by_name_and_reflection_knows_the_service(watched: Watched) -> None:
    call = watched.channel.unary_unary("/octavo.v1.MonitoringService/ExplainRequest")
    with pytest.raises(grpc.RpcError) as refused:
        call(b"\x0a\x02\xff\xfe", metadata=tuple(watched.bearer(OPERATOR_KEY).items()), timeout=10)
    error = OctavoError.from_rpc(refused.value)
    assert (error.status, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, "request_id")
    services = ProtoReflectionDescriptorDatabase(watched.channel).get_services()
    assert "octavo.v1.MonitoringService" in services
