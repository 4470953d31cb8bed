"""The KV manager's process: it stands by or leads, and answers as what it is."""

from __future__ import annotations

import asyncio
import logging
import secrets

from kvmanager.limits import Limits
from octavo.v1 import kvmanager_pb2, kvmanager_pb2_grpc
from services.config import EMBEDDED_STATE, ConfigError, KVManagerConfig
from services.kvmanager.driver import keep_from_collector
from services.kvmanager.leadership import Candidate
from services.kvmanager.metric_families import KVManagerFamilies
from services.kvmanager.metrics import DriverMetrics
from services.kvmanager.servicer import KVManagerServicer
from services.kvmanager.term import STANDBY, Term
from services.process import run_service
from services.rpc import health
from services.rpc.roles import CALLERS
from services.rpc.server import RpcServer
from services.state.leadership import Holder
from services.state.store import open_store
from services.telemetry.metrics import Exposition
from services.telemetry.metrics_server import MetricsServer
from services.telemetry.tracing import make_tracing

log = logging.getLogger(__name__)

SERVICE = kvmanager_pb2.DESCRIPTOR.services_by_name["KVManagerService"].full_name

STOP_SECONDS = 0.5


class KVManagerService:
    """The process: stand by until it leads, connect to the executors, serve gateways, drain.

    Attributes:
        term: None while it stands by.
    """

    def __init__(self, config: KVManagerConfig) -> None:
        self._config = config
        try:
            self._limits = Limits(
                config.max_batched_tokens,
                config.max_sequences,
                config.max_waiting_requests,
                config.max_waiting_tokens,
                config.max_waiting_requests_per_tenant,
                config.max_waiting_tokens_per_tenant,
            )
        except ValueError as error:
            raise ConfigError(str(error)) from error
        self._store = open_store(config.state, config.state_password())
        self._tracing = make_tracing("octavo-kvmanager", config.otlp_endpoint)
        self._server = RpcServer(config, [SERVICE], callers=CALLERS["kvmanager"])
        self._metrics = DriverMetrics()
        families = KVManagerFamilies(self._metrics)
        exposition = Exposition(lambda: families.collect(self.term, self._store.available))
        self._metrics_server = MetricsServer(config, exposition)
        self.term: Term | None = None

    async def start(self) -> None:
        await self._store.start()
        self._store.on_change(self._on_state_change)
        self._server.report_state(self._store.available)
        holder = Holder(self._config.address, secrets.token_hex(8))
        self._candidate = Candidate(self._store, self._config.group, holder)
        kvmanager_pb2_grpc.add_KVManagerServiceServicer_to_server(KVManagerServicer(self), self._server.grpc)
        await self._server.set_health(health.STANDBY, False)
        await self._server.start()
        await self._metrics_server.start()

    def _on_state_change(self, available: bool) -> None:
        self._server.report_state(available)
        if self.term is not None:
            self.term.state_changed()

    async def run(self) -> None:
        await asyncio.gather(self._candidate.run(), self._lead_when_possible())

    async def _lead_when_possible(self) -> None:
        while True:
            await self._candidate.until_settled()
            await self._report(serves=False, stands_by=not self._candidate.leads)
            await self._candidate.until_leading()
            await self._lead()
            keep_from_collector()  # what is left of the term

    async def _lead(self) -> None:
        """Leads until it is deposed. Then nothing of it is left."""
        self.term = term = Term(self._config, self._limits, self._candidate, self._store, self._tracing, self._metrics)
        tasks = [
            asyncio.ensure_future(term.run()),
            asyncio.ensure_future(self._report_health(term)),
            asyncio.ensure_future(self._candidate.until_deposed()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self.term = None
            term.end(STANDBY, complete=False)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _report_health(self, term: Term) -> None:
        """SERVING while there is an executor that takes requests, and steps go on."""
        while True:
            await term.driver.changed.wait()
            term.driver.changed.clear()
            serving = term.driver.serving
            await self._report(serves=serving, stands_by=serving)

    async def _report(self, *, serves: bool, stands_by: bool) -> None:
        await self._server.set_serving(serves)
        await self._server.set_health(health.STANDBY, stands_by)

    async def stop(self) -> None:
        """Lets another go on at once where there may be one; else lets requests that run come to their end."""
        await self._server.announce_shutdown()
        term = self.term
        if term is not None and self._config.state == EMBEDDED_STATE:
            await term.drain(self._config.drain_seconds)
        elif term is not None:
            await term.hand_over()
        await self._candidate.give_up()
        await self._server.stop(STOP_SECONDS)
        await self._store.close()
        await self._metrics_server.stop()
        self._tracing.shutdown()


def run(config: KVManagerConfig) -> None:
    """Serves until a signal.

    Raises:
        ConfigError: the settings contradict each other, or the port is in use.
    """
    run_service("kvmanager", config, lambda: KVManagerService(config))
