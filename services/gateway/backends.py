"""The groups of executors behind this gateway, each with a KV manager that leads it: which one a request goes to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import count

import grpc

from gateway.prepared import PreparedRequest
from octavo.v1 import common_pb2, inference_pb2
from services.gateway.kvmanager_link import KVManagerLink
from services.gateway.pacer import Pacer
from services.gateway.request_stream import RequestStream
from services.rpc.channel import Connect
from services.rpc.status import RpcError

log = logging.getLogger(__name__)


class Backends:
    """Hands requests to groups, and moves them where a group is lost.

    Args:
        groups: The addresses of each group's leader and standbys.
        connect: Reaches them.
        patience: As of `KVManagerLink`.
        responses_per_second: How many may leave, over all requests, before some are joined.
        on_change: Called when `ready` may have changed.

    Attributes:
        links: The way to each group's KV manager.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[str]],
        connect: Connect,
        patience: float,
        responses_per_second: float,
        on_change: Callable[[], None],
    ) -> None:
        self._pacer = Pacer(responses_per_second)
        self._on_change = on_change
        self.links = [KVManagerLink(addresses, connect, self._pacer, patience, self._changed) for addresses in groups]
        self._handles = count(1)

    @property
    def ready(self) -> bool:
        """There is an executor, or there was one until a moment ago."""
        return any(link.ready for link in self.links)

    @property
    def model(self) -> inference_pb2.Model:
        """The model that is served.

        Raises:
            RpcError: UNAVAILABLE: there is none.
        """
        return self._best().model

    def stream(self, request: PreparedRequest, trace: common_pb2.TraceContext | None) -> RequestStream:
        """A request that is not on its way yet."""
        return RequestStream(next(self._handles), request, trace, self._pacer)

    def submit(self, stream: RequestStream) -> None:
        """Sends a request on its way.

        Raises:
            RpcError: UNAVAILABLE: there is no KV manager, and hasn't been for a while. RESOURCE_EXHAUSTED: too many
                wait for its return.
        """
        self._best().submit(stream)

    def _best(self) -> KVManagerLink:
        """The group with the fewest requests, of those that are best off."""
        return min(self.links, key=lambda link: (not link.open, not link.ready, link.load))

    async def unpin(self, tenant: str, pin_id: str) -> None:
        """Lets go of one of a tenant's pins.

        Raises:
            RpcError: NOT_FOUND: there is none of that id; UNAVAILABLE: a group that may have it is away.
        """
        results = await asyncio.gather(*(link.unpin(tenant, pin_id) for link in self.links), return_exceptions=True)
        if None in results:
            return
        errors = [error for error in results if error is not None]
        unknown = [error for error in errors if not _is_not_found(error)]
        raise (unknown or errors)[0]

    async def pins(self, tenant: str) -> list[inference_pb2.Pin]:
        """A tenant's pins, in all groups.

        Raises:
            RpcError: UNAVAILABLE: a group is away.
        """
        return [pin for pins in await asyncio.gather(*(link.pins(tenant) for link in self.links)) for pin in pins]

    async def run(self) -> None:
        """Stays attached to all groups until cancelled."""
        await asyncio.gather(*(link.run() for link in self.links))

    def _changed(self) -> None:
        if len(self.links) > 1:
            self._move_requests()
        self._on_change()

    def _move_requests(self) -> None:
        """Those of groups that are away for good go to one that is not."""
        lost = [link for link in self.links if link.lost and link.load]
        if lost and (best := self._best()).open:
            for link in lost:
                log.warning("requests go on in another group", extra={"requests": link.load})
                link.move_all_to(best)


def _is_not_found(error: BaseException) -> bool:
    return isinstance(error, RpcError) and error.code is grpc.StatusCode.NOT_FOUND
