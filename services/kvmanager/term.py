"""All that a KV manager is while it leads. It ends with the lead; the next one starts from what the executors hold."""

from __future__ import annotations

import asyncio
import time

import grpc

from kvmanager.cost_model import Preemption
from kvmanager.events import Event
from kvmanager.limits import Limits
from kvmanager.manager import KVManager
from services.config import EMBEDDED_STATE, KVManagerConfig
from services.kvmanager.discovery import Discovery
from services.kvmanager.driver import Driver
from services.kvmanager.epochs import Epochs
from services.kvmanager.executors import Executors
from services.kvmanager.leadership import Candidate
from services.kvmanager.metrics import DriverMetrics
from services.kvmanager.pin_keeper import PinKeeper
from services.kvmanager.prefix_publisher import PrefixPublisher
from services.kvmanager.request_traces import RequestTraces
from services.kvmanager.request_views import RequestViews
from services.kvmanager.tenant_quotas import TenantQuotas
from services.kvmanager.timelines import Timelines
from services.rpc.channel import connector
from services.rpc.status import RpcError
from services.state.store import StateStore
from services.state.tenants_file import tenant_stores
from services.telemetry.tracing import Tracing

INTEGRITY_SECONDS = 1.0

BEAT_SECONDS = 0.5
"""A gateway that hears nothing for four of these takes the KV manager to be lost."""

STANDBY = RpcError(grpc.StatusCode.UNAVAILABLE, "another KV manager leads", "STANDBY")
DRAINING = RpcError(grpc.StatusCode.UNAVAILABLE, "the KV manager is shutting down", "DRAINING")


class Term:
    """The core, the executors that it has, and what others are told of it.

    Needs a running event loop.
    """

    def __init__(
        self,
        config: KVManagerConfig,
        limits: Limits,
        candidate: Candidate,
        store: StateStore,
        tracing: Tracing,
        metrics: DriverMetrics,
    ) -> None:
        self._shares_state = config.state != EMBEDDED_STATE
        epoch_offset = time.time() - time.monotonic()
        traces, timelines = RequestTraces(tracing, epoch_offset), Timelines()

        def on_event(event: Event) -> None:
            traces.on_event(event)
            timelines.on_event(event)

        manager = KVManager(
            limits,
            policy=config.policy,
            preemption=Preemption(config.preemption),
            quotas=config.quotas(),
            prefix_caching=config.prefix_caching,
            on_event=on_event,
        )
        timelines.find = manager.requests.get
        self.requests = RequestViews(manager, timelines, epoch_offset)
        self.driver = Driver(manager, traces, timelines, metrics)
        self.driver.backend.group = config.group
        self.executors = Executors(
            self.driver,
            store.executors,
            config.group,
            Epochs(candidate),
            config.executor_patience,
            connector(config, "executor"),
        )
        self._discovery = Discovery(
            config.executor_addresses(), self.executors, self.driver, store.executors, config.group
        )
        self._prefixes = PrefixPublisher(manager, store.prefixes, config.group, lambda: self.driver.backend.model.name)
        self._pins = PinKeeper(self.driver, store.pins, config.group)
        tenants, _ = tenant_stores(store, config.tenants_file)
        self._quotas = TenantQuotas(tenants, config.quotas(), self.driver.set_quotas)
        self.over = asyncio.Event()
        """Set when whoever watches is to look elsewhere."""

    async def run(self) -> None:
        """Leads until cancelled. Whatever unexpected happens is raised here."""
        work = [
            self.executors.run(),
            self._discovery.run(),
            self._quotas.run(),
            self._check_integrity(),
            self._beat(),
        ]
        if self._shares_state:
            work += [self._prefixes.run(), self._pins.run()]
        await asyncio.gather(*work)

    def state_changed(self) -> None:
        """The state store went away or came back, maybe without what it had."""
        self._pins.doubt()

    async def note_pins(self) -> None:
        """Brings the state store up to date, if it is there, without waiting for the next look."""
        if self._shares_state:
            await self._pins.keep()

    async def hand_over(self) -> None:
        """Brings the steps under way to their end, and sends the gateways elsewhere with what they have."""
        await self.driver.halt()
        await self.note_pins()
        self.end(DRAINING, complete=True)

    async def drain(self, seconds: float) -> None:
        """Lets requests that run come to their end; what is left then goes elsewhere."""
        await self.driver.drain(seconds)
        self.end(DRAINING, complete=True)

    def end(self, farewell: RpcError, *, complete: bool) -> None:
        """Nothing more is said to anyone, but this. Only the first end counts.

        Args:
            complete: What the steps so far have brought is sent before.
        """
        if not self.over.is_set():
            self.over.set()
            self.driver.end(farewell, complete=complete)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            self.driver.beat()

    async def _check_integrity(self) -> None:
        while True:
            await asyncio.sleep(INTEGRITY_SECONDS)
            self.driver.check_when_idle()
