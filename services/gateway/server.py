"""The gateway's process: loads the tokenizer, attaches to the KV manager, serves clients, drains."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from datetime import datetime

from starlette.routing import BaseRoute

from gateway.errors import TokenizerError
from gateway.gateway import Gateway
from gateway.loading import load_tokenizer
from octavo.v1 import monitoring_pb2
from services.config import ConfigError, GatewayConfig
from services.gateway.answers import Answers
from services.gateway.backends import Backends
from services.gateway.calls import Calls
from services.gateway.door import Door
from services.gateway.guide_checker import GuideChecker
from services.gateway.http.console.routes import console_routes
from services.gateway.http.metrics import metrics_routes
from services.gateway.http.openai.routes import openai_routes
from services.gateway.http.probes import Status, probe_routes
from services.gateway.http.server import HttpServer
from services.gateway.kserve.servicer import SERVICE as INFERENCE_SERVICE
from services.gateway.kserve.servicer import InferenceServicer
from services.gateway.metrics.calls import CallMetrics
from services.gateway.metrics.gateway_metrics import GatewayMetrics
from services.gateway.monitoring.monitoring import Monitoring
from services.gateway.monitoring.servicer import SERVICE as MONITORING_SERVICE
from services.gateway.monitoring.servicer import MonitoringServicer
from services.gateway.servicer import SERVICE, GenerationServicer
from services.gateway.token_log import TokenLogs
from services.gateway.viewers import Viewer
from services.gateway.vllm import SERVICE as VLLM_SERVICE
from services.gateway.vllm import load_servicer
from services.process import run_service
from services.rpc.channel import connector
from services.rpc.server import RpcServer
from services.state.store import StateUnavailable, open_store
from services.state.token_log import TokenLogLimits
from services.telemetry.metrics_server import MetricsServer
from services.telemetry.tracing import make_tracing

# So many cost a core some percent of its time.
_RESPONSES_PER_SECOND = 125.0

_BREAK_OFF_SECONDS = 1.0
"""What calls that did not end by themselves get to hear that they are to go on elsewhere."""


class GatewayService:
    """The process: load the tokenizer, attach to the KV manager, serve clients, drain."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._tracing = make_tracing("octavo-gateway", config.otlp_endpoint)
        self._vllm_servicer = load_servicer()
        services = [SERVICE, INFERENCE_SERVICE, MONITORING_SERVICE]
        services += [VLLM_SERVICE] if self._vllm_servicer else []
        self._server = RpcServer(config, services, max_message_bytes=config.max_message_bytes)
        self._http = HttpServer(config) if config.http else None
        self._store = open_store(
            config.state, config.state_password(), TokenLogLimits(seconds=config.token_log_seconds)
        )
        self._logs = TokenLogs(self._store) if config.token_log_seconds else None
        self._door = Door(config, self._store)
        self._call_metrics = CallMetrics()
        self._changed = asyncio.Event()
        responses_per_second = config.max_responses_per_second or _RESPONSES_PER_SECOND * (os.cpu_count() or 1)
        self._backends = Backends(
            config.kvmanager_groups(),
            connector(config, "kvmanager"),
            self._store.prefixes,
            config.kvmanager_patience,
            responses_per_second,
            self._changed.set,
        )

    async def start(self) -> None:
        await self._store.start()
        self._store.on_change(self._server.report_state)
        self._server.report_state(self._store.available)
        await self._door.open()
        try:
            tokenizer = await asyncio.to_thread(load_tokenizer, self._config.model)
            gateway = Gateway(tokenizer, self._config.model_name, now=datetime.now)
        except TokenizerError as error:
            raise ConfigError(str(error)) from error
        self._guides = GuideChecker(tokenizer)
        self._answers = Answers(gateway, self._backends, self._logs)
        calls = Calls(
            gateway,
            self._backends,
            self._answers,
            self._door.callers,
            self._door.admission,
            self._tracing,
            self._call_metrics,
            self._guides,
        )
        generation = GenerationServicer(calls, self._server.count)
        inference = InferenceServicer(calls.speaking("kserve"), self._server)
        self._monitoring = Monitoring(
            self._backends.links,
            model=lambda: calls.model,
            ready=lambda: self._backends.ready,
            state_available=lambda: self._store.available,
            namespaces=lambda tenant: self._door.feed.directory.namespaces(tenant),
            decode=lambda token_ids: tokenizer.decode(token_ids, skip_special_tokens=False),
        )
        monitoring = MonitoringServicer(self._monitoring, self._door.viewers)
        handlers = [each.handlers() for each in (generation, inference, monitoring)]
        if self._vllm_servicer is not None:
            viewers, count = self._door.viewers, self._server.count
            engine = self._vllm_servicer(calls.speaking("vllm"), self._backends, viewers, self._monitoring, count)
            handlers.append(engine.handlers())
        self._server.grpc.add_generic_rpc_handlers(handlers)
        self._exposition = GatewayMetrics(
            self._config.model_name,
            self._call_metrics,
            self._backends,
            self._logs,
            lambda: self._store.available,
            lambda: self._door.feed.directory.names,
        ).exposition()
        self._metrics_server = MetricsServer(self._config, self._exposition)
        await self._server.start()
        await self._metrics_server.start()
        if self._http is not None:
            await self._http.start(self._routes(self._http, calls))

    @property
    def http_address(self) -> str:
        """``host:port`` where HTTP is served; empty where it isn't."""
        return "" if self._http is None else self._http.address

    def _routes(self, http: HttpServer, calls: Calls) -> list[BaseRoute]:
        def status() -> Status:
            return Status(self._backends.ready, http.draining, self._store.available)

        return [
            *probe_routes(status),
            *metrics_routes(self._exposition, self._door.viewers),
            *console_routes(self._monitoring, self._door.viewers),
            *openai_routes(calls.speaking("openai"), self._explain),
        ]

    async def _explain(self, tenant: str, request_id: str) -> monitoring_pb2.Timeline:
        question = monitoring_pb2.ExplainRequestRequest(request_id=request_id)
        return (await self._monitoring.explain(question, Viewer(tenant))).timeline

    async def run(self) -> None:
        await asyncio.gather(
            self._backends.run(),
            self._door.run(),
            self._log_tokens(),
            self._report_health(),
            self._run_http(),
            self._monitoring.run(),
        )

    async def _run_http(self) -> None:
        if self._http is not None:
            await self._http.run()

    async def _log_tokens(self) -> None:
        if self._logs is not None:
            await self._logs.run()

    async def _report_health(self) -> None:
        """SERVING while the way to an executor is open."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._server.set_serving(self._backends.ready)

    async def flush_token_logs(self) -> None:
        """Notes what has been answered up to now, if the state store is there."""
        if self._logs is not None:
            with suppress(StateUnavailable):
                await self._logs.flush()

    async def stop(self) -> None:
        if self._http is not None:
            self._http.announce_shutdown()
        await self._server.announce_shutdown()
        stopping = asyncio.ensure_future(self._stop_servers(self._config.drain_seconds + _BREAK_OFF_SECONDS))
        await asyncio.wait([stopping], timeout=self._config.drain_seconds)
        if not stopping.done():
            await self._answers.break_off()
        await stopping
        await self.flush_token_logs()
        await self._guides.close()
        await self._door.close()
        await self._store.close()
        await self._metrics_server.stop()
        self._tracing.shutdown()

    async def _stop_servers(self, grace: float) -> None:
        stops = [self._server.stop(grace)]
        if self._http is not None:
            stops.append(self._http.stop(grace))
        await asyncio.gather(*stops)


def run(config: GatewayConfig) -> None:
    """Serves until a signal.

    Raises:
        ConfigError: the tokenizer can't be loaded, or the port is in use.
    """
    run_service("gateway", config, lambda: GatewayService(config))
