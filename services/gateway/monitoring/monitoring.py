"""What may be asked about the stack, whichever protocol it is asked in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import grpc
from google.protobuf.duration_pb2 import Duration

from octavo.v1 import inference_pb2, monitoring_pb2
from services.gateway.kvmanager_link import KVManagerLink
from services.gateway.monitoring.block_map import BlockMap
from services.gateway.monitoring.block_watch import BlockWatch
from services.gateway.monitoring.groups import groups_of
from services.gateway.monitoring.samples import SAMPLE_SECONDS, Samples
from services.gateway.monitoring.status import past_status, status_of
from services.gateway.viewers import Viewer
from services.rpc.status import RpcError

STATUS_SECONDS = 1.0
BLOCKS_SECONDS = 0.2
MIN_SECONDS, MAX_SECONDS = 0.1, 3600.0


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
    """

    def __init__(
        self,
        links: Sequence[KVManagerLink],
        *,
        model: Callable[[], inference_pb2.Model],
        ready: Callable[[], bool],
        state_available: Callable[[], bool],
        namespaces: Callable[[str], frozenset[str]],
    ) -> None:
        self._groups = groups_of(links)
        self._model = model
        self._namespaces = namespaces
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
        sample = await self._samples.latest(max_age)
        history = [past_status(each, viewer) for each in self._samples.history if each.time < sample.time]
        yield monitoring_pb2.WatchStatusResponse(history=history, status=status_of(sample, viewer, self._model_now()))
        while True:
            await asyncio.sleep(interval)
            sample = await self._samples.latest(max_age)
            yield monitoring_pb2.WatchStatusResponse(status=status_of(sample, viewer, self._model_now()))

    async def status(self, viewer: Viewer) -> monitoring_pb2.Status:
        """How the stack is, or was a second ago at most."""
        return status_of(await self._samples.latest(SAMPLE_SECONDS), viewer, self._model_now())

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


def _seconds(interval: Duration) -> float:
    seconds = interval.seconds + interval.nanos / 1e9
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        message = f"interval: is {seconds:g} s; it must be from {MIN_SECONDS:g} to {MAX_SECONDS:g} s"
        raise RpcError(grpc.StatusCode.INVALID_ARGUMENT, message, "INVALID_ARGUMENT", "interval")
    return seconds
