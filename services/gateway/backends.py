"""The groups of executors behind this gateway, each with a KV manager that leads it: which one a request goes to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import count

import grpc

from gateway.prepared import PreparedRequest
from octavo.v1 import common_pb2, inference_pb2
from services.gateway.kvmanager_link import KVManagerLink
from services.gateway.pacer import Pacer
from services.gateway.prefix_identities import prefix_identities
from services.gateway.request_stream import RequestStream
from services.rpc.channel import Connect
from services.rpc.status import RpcError
from services.state.prefix_directory import PrefixDirectory
from services.state.store import StateUnavailable

log = logging.getLogger(__name__)

DIRECTORY_SECONDS = 0.02
"""For which a request waits for a hint about where its prefix is: less than most prefills take."""

ABOUT_EQUAL = 1.25
"""As of `kvmanager.router`: tokens to compute that differ no more than this say nothing."""


class Backends:
    """Hands requests to groups, and moves them where a group is lost.

    As between the replicas of one KV manager (`kvmanager.router.Router`), a request goes where the fewest tokens are to
    be computed before its first one: those of prompts that this gateway has sent there and that have no token yet, and
    what of its own prompt is not cached. Cached is what the prefix directory says, and what requests that are there
    begin with. Among groups that are about equal the one with the fewest requests is taken.

    Args:
        groups: The addresses of each group's leader and standbys.
        connect: Reaches them.
        directory: Tells which group has which prefixes.
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
        directory: PrefixDirectory,
        patience: float,
        responses_per_second: float,
        on_change: Callable[[], None],
    ) -> None:
        self._pacer = Pacer(responses_per_second)
        self._directory = directory
        self._on_change = on_change
        self.links = [KVManagerLink(addresses, connect, self._pacer, patience, self._changed) for addresses in groups]
        self._handles = count(1)
        self._look_ups: set[asyncio.Future[Mapping[str, int]]] = set()

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
        return self._least_loaded().model

    def stream(self, request: PreparedRequest, trace: common_pb2.TraceContext | None) -> RequestStream:
        """A request that is not on its way yet."""
        return RequestStream(next(self._handles), request, trace, self._pacer)

    async def submit(self, stream: RequestStream) -> None:
        """Sends a request on its way.

        Raises:
            RpcError: UNAVAILABLE: there is no KV manager, and hasn't been for a while. RESOURCE_EXHAUSTED: too many
                wait for its return.
        """
        link = await self._choose(stream) if len(self.links) > 1 else self.links[0]
        link.submit(stream)

    async def _choose(self, stream: RequestStream) -> KVManagerLink:
        if sum(link.open and link.ready for link in self.links) < 2:
            return self._least_loaded()
        stream.identities = prefix_identities(stream.request, self.model.block_size)
        cached = await self._cached_blocks(stream.identities)
        candidates = [link for link in self.links if link.open and link.ready]
        if not candidates:  # they have gone meanwhile
            return self._least_loaded()
        tokens = {link: _tokens_to_compute(stream, link, cached.get(link.group, 0)) for link in candidates}
        limit = min(tokens.values()) * ABOUT_EQUAL
        about_equal = [link for link in candidates if tokens[link] <= limit]
        return min(about_equal, key=lambda link: (link.load, tokens[link]))

    async def _cached_blocks(self, identities: Sequence[bytes]) -> Mapping[str, int]:
        """Leading blocks that each group has, as far as that is known soon enough."""
        if not identities:
            return {}
        # One that comes too late is not cut off: the connection to the store goes on to serve others.
        look_up = asyncio.ensure_future(self._look_up(self.model.name, identities))
        self._look_ups.add(look_up)
        look_up.add_done_callback(self._look_ups.discard)
        await asyncio.wait([look_up], timeout=DIRECTORY_SECONDS)
        return look_up.result() if look_up.done() else {}

    async def _look_up(self, model: str, identities: Sequence[bytes]) -> Mapping[str, int]:
        try:
            return await self._directory.longest(model, identities)
        except StateUnavailable:
            return {}

    def _least_loaded(self) -> KVManagerLink:
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
        if lost and (best := self._least_loaded()).open:
            for link in lost:
                log.warning("requests go on in another group", extra={"requests": link.load})
                link.move_all_to(best)


def _tokens_to_compute(stream: RequestStream, link: KVManagerLink, cached_blocks: int) -> int:
    """Before the request's first token, if it goes there."""
    num_blocks = link.num_expected(stream.identities, cached_blocks)
    return link.tokens_to_prefill + len(stream.request.prompt_token_ids) - num_blocks * link.model.block_size


def _is_not_found(error: BaseException) -> bool:
    return isinstance(error, RpcError) and error.code is grpc.StatusCode.NOT_FOUND
