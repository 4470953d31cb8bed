"""The client's calls that say what goes on in a stack, of both kinds."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from octavo.client import AsyncClient, Client, OctavoError, RetryPolicy
from octavo.v1 import monitoring_pb2 as pb
from tests.services.scripted_monitoring import ScriptedMonitoring, a_status, monitored

QUICK = RetryPolicy(initial_delay=0.01, maximum_delay=0.05)


@pytest.fixture
def servicer() -> ScriptedMonitoring:
    servicer = ScriptedMonitoring()
    servicer.requests = [pb.RequestView(request_id="a"), pb.RequestView(request_id="b")]
    servicer.timelines["a"] = pb.Timeline(request=servicer.requests[0])
    servicer.tree = pb.GetPrefixTreeResponse(nodes=[pb.PrefixNode(num_blocks=3)])
    return servicer


@pytest.fixture
def address(servicer: ScriptedMonitoring) -> Iterator[str]:
    with monitored(servicer) as address:
        yield address


def a_stream_that_breaks(servicer: ScriptedMonitoring) -> None:
    for number in range(2):
        servicer.statuses.put(pb.WatchStatusResponse(history=[a_status(0)], status=a_status(number)))
        servicer.statuses.put(None)
    servicer.statuses.put(pb.WatchStatusResponse(status=a_status(2)))


def test_watch_status_goes_on_when_the_server_is_back(address: str, servicer: ScriptedMonitoring) -> None:
    a_stream_that_breaks(servicer)
    with Client(address, retry=QUICK) as client:
        watch = client.watch_status(interval=0.25)
        assert [next(watch).status.counters.steps for _ in range(3)] == [0, 1, 2]
        watch.close()  # type: ignore[attr-defined]
    assert servicer.intervals == [0.25] * 3


async def test_watch_status_from_asyncio(address: str, servicer: ScriptedMonitoring) -> None:
    a_stream_that_breaks(servicer)
    steps = []
    async with AsyncClient(address, retry=QUICK) as client:
        async for response in client.watch_status():
            steps.append(response.status.counters.steps)
            if len(steps) == 3:
                break
    assert steps == [0, 1, 2]


def test_a_watch_that_is_refused(address: str, servicer: ScriptedMonitoring) -> None:
    servicer.key = "secret"
    with Client(address, retry=QUICK) as client, pytest.raises(OctavoError) as refused:
        next(client.watch_status())
    assert refused.value.status is grpc.StatusCode.UNAUTHENTICATED


def test_questions(address: str) -> None:
    with Client(["127.0.0.1:9", address], retry=QUICK) as client:
        assert [each.request_id for each in client.requests(5, include_blocks=True)] == ["a", "b"]
        assert client.explain("a").request.request_id == "a"
        assert client.prefix_tree(max_nodes=7).nodes[0].num_blocks == 3
        with pytest.raises(OctavoError) as unknown:
            client.explain("c")
    assert unknown.value.status is grpc.StatusCode.NOT_FOUND


async def test_questions_from_asyncio(address: str, servicer: ScriptedMonitoring) -> None:
    async with AsyncClient(["127.0.0.1:9", address], retry=QUICK) as client:
        assert [each.request_id for each in await client.requests(5, include_blocks=True)] == ["a", "b"]
        assert (await client.explain("a")).request.request_id == "a"
        assert (await client.prefix_tree(max_nodes=7)).nodes[0].num_blocks == 3
        with pytest.raises(OctavoError) as unknown:
            await client.explain("c")
    assert unknown.value.status is grpc.StatusCode.NOT_FOUND
    assert servicer.asked == [
        pb.ListRequestsRequest(num_ended=5, include_blocks=True),
        pb.GetPrefixTreeRequest(max_nodes=7),
    ]
