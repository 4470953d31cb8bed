"""A port for Prometheus alone. Whoever reaches it may read it: it belongs on an inner network."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from services.config import ServiceConfig, join_address
from services.ports import listen
from services.telemetry.metrics import Exposition

if TYPE_CHECKING:
    from services.telemetry.metrics_app import MetricsApp

log = logging.getLogger(__name__)


class MetricsServer:
    """Answers ``GET /metrics``. Belongs to the event loop that starts it.

    Args:
        config: Where it listens; it doesn't, where `metrics_port` is absent.
        exposition: What it shows.
    """

    def __init__(self, config: ServiceConfig, exposition: Exposition) -> None:
        self._host = config.metrics_host
        self._port = config.metrics_port
        self._exposition = exposition
        self._app: MetricsApp | None = None
        self._serving: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Binds and listens.

        Raises:
            ConfigError: the port is in use, or the host is not this machine's.
        """
        if self._port is None:
            return
        from services.telemetry.metrics_app import MetricsApp  # only who wants the web server pays for it

        held = listen(self._host, self._port)
        self._app = MetricsApp(self._exposition)
        self._serving = asyncio.ensure_future(self._app.serve([held]))
        log.info("listening for Prometheus", extra={"address": join_address(self._host, held.getsockname()[1])})

    async def stop(self) -> None:
        """Answers nobody any more."""
        if self._app is not None and self._serving is not None:
            self._app.should_exit = True
            await self._serving
