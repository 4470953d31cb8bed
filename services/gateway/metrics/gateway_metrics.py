"""All that a gateway shows to Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from prometheus_client.core import Metric

from gateway.scope import DEFAULT_NAME
from services.gateway.backends import Backends
from services.gateway.metrics.calls import CallMetrics
from services.gateway.metrics.cluster import Cluster
from services.gateway.metrics.own_names import GatewayState, GroupState, own_families
from services.gateway.metrics.vllm_names import vllm_families
from services.gateway.token_log import TokenLogs
from services.telemetry.metrics import Exposition


@dataclass(frozen=True)
class GatewayMetrics:
    """Puts together what the parts of a gateway know.

    Attributes:
        model_name: As clients call it.
        calls: Counts them.
        state_available: Whether the state store is there.
        tenants: Those of the directory.
    """

    model_name: str
    calls: CallMetrics
    backends: Backends
    logs: TokenLogs | None
    state_available: Callable[[], bool]
    tenants: Callable[[], Collection[str]]

    def exposition(self) -> Exposition:
        """The metrics as text."""
        cluster = Cluster(self.backends.links)

        def collect() -> Iterator[Metric]:
            yield from own_families(self.calls, self._state(), {DEFAULT_NAME, *self.tenants()})
            yield from vllm_families(self.model_name, self.calls, cluster)

        return Exposition(collect, cluster.refresh)

    def _state(self) -> GatewayState:
        groups = [
            GroupState(link.group or str(number), link.open, link.ready, link.load)
            for number, link in enumerate(self.backends.links)
        ]
        lag, unwritten = (0.0, 0) if self.logs is None else (self.logs.lag, self.logs.num_unwritten)
        return GatewayState(groups, self.state_available(), lag, unwritten)
