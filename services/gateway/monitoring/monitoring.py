"""What may be asked about the stack, whichever protocol it is asked in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import grpc
from google.protobuf.duration_pb2 import Duration

from octavo.v1 import inference_pb2, kvmanager_pb2, monitoring_pb2
from services.gateway.kvmanager_link import ANSWER_SECONDS, KVManagerLink
from services.gateway.monitoring.block_map import BlockMap
from services.gateway.monitoring.block_watch import BlockWatch
from services.gateway.monitoring.groups import Group, groups_of
from services.gateway.monitoring.prefixes import Decode, one_tree
from services.gateway.monitoring.requests import latest, one_list
from services.gateway.monitoring.samples import SAMPLE_SECONDS, Sample, Samples
from services.gateway.monitoring.status import past_status, status_of
from services.gateway.viewers import Viewer
from services.gateway.waiting import unavailable
from services.rpc.status import RpcError

STATUS_SECONDS = 1.0
BLOCKS_SECONDS = 0.2
MIN_SECONDS, MAX_SECONDS = 0.1, 3600.0
MAX_ENDED = 1000
DEFAULT_NODES, MAX_NODES = 500, 10_000

A = TypeVar("A")


class Monitoring:
    """Answers who looks with what that viewer may see. Every method raises RpcError.

    A tenant sees its own requests, its own blocks, and the prefixes that it may reuse. Of others it sees nothing, nor
    sums or differences that would tell how much they use.

    Args:
        links: The way to each group's KV manager.
        model: The model that is served; raises RpcError while there is none.
        ready: Whether there is an executor.
        state_available: Whether the state store is there.
        namespaces: The shared namespaces that a tenant has joined, as it is now.
        decode: The text of token ids.
    """

    def __init__(
        self,
        links: Sequence[KVManagerLink],
        *,
        model: Callable[[], inference_pb2.Model],
        ready: Callable[[], bool],
        state_available: Callable[[], bool],
        namespaces: Callable[[str], frozenset[str]],
        decode: Decode,
    ) -> None:
        self._groups = groups_of(links)
        self._model = model
        self._namespaces = namespaces
        self._decode = decode
        self._samples = Samples(self._groups, ready, state_available)
        self._blocks = BlockMap(self._groups)

    async def run(self) -> None:
        """Keeps a history of the last minutes until cancelled."""
        await self._samples.run()

    async def watch_status(
        self, request: monitoring_pb2.WatchStatusRequest, viewer: Viewer
    ) -> AsyncIterator[monitoring_pb2.WatchStatusResponse]:
        """How the stack is, for ever. While there is nobody to tell it is not ready, and that is no error."""
        interval = _seconds(request.interval) if request.HasField("interval") else STATUS_SECONDS
        max_age = min(interval, SAMPLE_SECONDS)
        sample = await self._samples.latest(MIN_SECONDS)
        history = [await self._past(each, viewer) for each in self._samples.up_to(sample.time)]
        yield monitoring_pb2.WatchStatusResponse(history=history, status=status_of(sample, viewer, self._model_now()))
        while True:
            await asyncio.sleep(interval)
            sample = await self._samples.latest(max_age)
            yield monitoring_pb2.WatchStatusResponse(status=status_of(sample, viewer, self._model_now()))

    async def status(self, viewer: Viewer) -> monitoring_pb2.Status:
        """How the stack is, or was a second ago at most."""
        return status_of(await self._samples.latest(SAMPLE_SECONDS), viewer, self._model_now())

    async def _past(self, sample: Sample, viewer: Viewer) -> monitoring_pb2.Status:
        """One of very many: streams of answers go on between."""
        await asyncio.sleep(0)
        return past_status(sample, viewer)

    async def watch_blocks(
        self, request: monitoring_pb2.WatchBlocksRequest, viewer: Viewer
    ) -> AsyncIterator[monitoring_pb2.WatchBlocksResponse]:
        """The physical blocks of all executors as they change, for ever."""
        interval = _seconds(request.interval) if request.HasField("interval") else BLOCKS_SECONDS
        watch = BlockWatch(self._blocks, lambda: self._owners(viewer))
        self._blocks.add(watch)
        try:
            while True:
                for message in watch.messages():
                    yield message
                await asyncio.sleep(interval)
        finally:
            self._blocks.remove(watch)

    async def list_requests(
        self, request: monitoring_pb2.ListRequestsRequest, viewer: Viewer
    ) -> monitoring_pb2.ListRequestsResponse:
        """Requests that wait and run, and the last ones that have ended; in groups that can't be reached, none."""
        _check_range("num_ended", request.num_ended, 0, MAX_ENDED)
        question = kvmanager_pb2.KVManagerServiceListRequestsRequest(
            tenant=_tenant(viewer), num_ended=request.num_ended, include_blocks=request.include_blocks
        )
        answers = await self._ask_all(lambda stub: stub.ListRequests(question, timeout=ANSWER_SECONDS))
        found = [(group, answer.requests) for group, answer in answers]
        return monitoring_pb2.ListRequestsResponse(requests=one_list(found, request.num_ended))

    async def explain(
        self, request: monitoring_pb2.ExplainRequestRequest, viewer: Viewer
    ) -> monitoring_pb2.ExplainRequestResponse:
        """A request's life. NOT_FOUND: the viewer has no such request, or it ended too long ago."""
        if not request.request_id:
            raise _invalid("request_id", "must not be empty")
        question = kvmanager_pb2.GetTimelineRequest(tenant=_tenant(viewer), request_id=request.request_id)
        try:
            answers = await self._ask_all(lambda stub: stub.GetTimeline(question, timeout=ANSWER_SECONDS))
        except RpcError as error:
            if error.code is not grpc.StatusCode.NOT_FOUND:
                raise
            message = "request_id: there is no such request, or it ended too long ago"
            raise RpcError(error.code, message, "REQUEST_NOT_FOUND", "request_id") from error
        timeline = latest([(group, answer.timeline) for group, answer in answers])
        return monitoring_pb2.ExplainRequestResponse(timeline=timeline)

    async def prefix_tree(
        self, request: monitoring_pb2.GetPrefixTreeRequest, viewer: Viewer
    ) -> monitoring_pb2.GetPrefixTreeResponse:
        """What the prefix caches hold; of groups that can't be reached, nothing."""
        max_nodes = request.max_nodes if request.HasField("max_nodes") else DEFAULT_NODES
        _check_range("max_nodes", max_nodes, 1, MAX_NODES)
        question = kvmanager_pb2.KVManagerServiceGetPrefixTreeRequest(
            owners=self._owners(viewer) or (), max_nodes=max_nodes
        )
        answers = await self._ask_all(lambda stub: stub.GetPrefixTree(question, timeout=ANSWER_SECONDS))
        return await asyncio.to_thread(one_tree, answers, viewer, max_nodes, self._decode)

    async def _ask_all(self, call: Callable[[Any], Awaitable[A]]) -> list[tuple[Group, A]]:
        """What each group says that can be reached.

        Raises:
            RpcError: None answers.
        """
        groups = [group for group in self._groups if group.link.open]
        answers = await asyncio.gather(*(group.link.ask(call) for group in groups), return_exceptions=True)
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        for failure in failures:
            if not isinstance(failure, RpcError):
                raise failure
        found = [
            (group, answer)
            for group, answer in zip(groups, answers, strict=True)
            if not isinstance(answer, BaseException)
        ]
        if not found:
            raise failures[0] if failures else unavailable("the KV manager can't be reached")
        return found

    def _owners(self, viewer: Viewer) -> Sequence[str] | None:
        """Whose blocks somebody may see, itself first; None: everybody's."""
        if viewer.tenant is None:
            return None
        return [viewer.tenant, *(f"shared:{name}" for name in sorted(self._namespaces(viewer.tenant)))]

    def _model_now(self) -> inference_pb2.Model | None:
        try:
            return self._model()
        except RpcError:
            return None


def _tenant(viewer: Viewer) -> str:
    """As KV managers are told whose share is asked for: the operator's is everybody's."""
    if viewer.tenant is None:
        return ""
    assert viewer.tenant
    return viewer.tenant


def _check_range(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise _invalid(field, f"is {value}; it must be from {least} to {most}")


def _invalid(field: str, why: str) -> RpcError:
    return RpcError(grpc.StatusCode.INVALID_ARGUMENT, f"{field}: {why}", "INVALID_ARGUMENT", field)


def _seconds(interval: Duration) -> float:
    seconds = interval.seconds + interval.nanos / 1e9
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise _invalid("interval", f"is {seconds:g} s; it must be from {MIN_SECONDS:g} to {MAX_SECONDS:g} s")
    return seconds
