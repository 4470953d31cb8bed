"""Where the console's data come from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Protocol

from octavo.v1 import monitoring_pb2


class Viewer(Protocol):
    """Who looks: a tenant, or with None somebody who sees all."""

    @property
    def tenant(self) -> str | None: ...


class Viewers(Protocol):
    """Tells viewers apart. What `identify` raises is RpcError."""

    def identify(self, metadata: Iterable[tuple[str, str | bytes]]) -> Viewer: ...


class Monitoring(Protocol):
    """MonitoringService for callers in this process: each call with its viewer, who sees no more than its share."""

    def watch_status(
        self, request: monitoring_pb2.WatchStatusRequest, viewer: Viewer
    ) -> AsyncIterator[monitoring_pb2.WatchStatusResponse]: ...

    def watch_blocks(
        self, request: monitoring_pb2.WatchBlocksRequest, viewer: Viewer
    ) -> AsyncIterator[monitoring_pb2.WatchBlocksResponse]: ...

    async def list_requests(
        self, request: monitoring_pb2.ListRequestsRequest, viewer: Viewer
    ) -> monitoring_pb2.ListRequestsResponse: ...

    async def explain_request(
        self, request: monitoring_pb2.ExplainRequestRequest, viewer: Viewer
    ) -> monitoring_pb2.ExplainRequestResponse: ...

    async def get_prefix_tree(
        self, request: monitoring_pb2.GetPrefixTreeRequest, viewer: Viewer
    ) -> monitoring_pb2.GetPrefixTreeResponse: ...
