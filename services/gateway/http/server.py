"""The HTTP server: uvicorn's protocol and Starlette's routes on the process's own event loop, to a drained end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from email.utils import formatdate

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from services.config import GatewayConfig, join_address
from services.gateway.http.draining import Draining
from services.gateway.http.errors import exception_handlers
from services.gateway.http.requests import BodyLimit
from services.gateway.http.tls import ServerContext
from services.ports import listen

log = logging.getLogger(__name__)

_KEEP_ALIVE_SECONDS = 75
"""An idle connection is kept longer than proxies in front keep theirs (60 s): they close first, and lose no request."""

_BACKLOG = 2048

_LAST_WORD_SECONDS = 0.5
"""What requests that are cut off get to let go of what they have."""


class HttpServer:
    """One process's HTTP server. Belongs to the event loop that starts it.

    Args:
        config: where it listens, and its certificate.

    Raises:
        ConfigError: the certificate can't be used.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._tls = None if config.server_tls is None else ServerContext(config.server_tls)
        self._draining = Draining()
        self._state = ServerState()
        self._listener: asyncio.Server | None = None
        self.address = ""
        """``host:port`` once it listens."""

    @property
    def draining(self) -> bool:
        """The process is about to end."""
        return self._draining.announced

    async def start(self, routes: Sequence[BaseRoute]) -> None:
        """Binds and listens.

        Raises:
            ConfigError: the port is in use, or the host is not this machine's.
        """
        held = listen(self._config.host, self._config.http_port, _BACKLOG)
        self._draining.app = Starlette(
            routes=routes,
            middleware=[Middleware(BodyLimit, self._config.max_message_bytes)],
            exception_handlers=exception_handlers(),
        )
        settings = uvicorn.Config(
            self._draining,
            http=H11Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
        settings.load()
        self._tell_time()
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: H11Protocol(config=settings, server_state=self._state, app_state={}, _loop=loop),
            sock=held,
            ssl=None if self._tls is None else self._tls.ssl,
        )
        self.address = join_address(self._config.host, held.getsockname()[1])
        log.info("listening for HTTP", extra={"address": self.address})

    async def run(self) -> None:
        """Keeps the date in responses, for ever."""
        while True:
            self._tell_time()
            await asyncio.sleep(1.0)

    def announce_shutdown(self) -> None:
        """Not ready from here on, and no new calls; who asks is still answered."""
        self._draining.announced = True

    async def stop(self, grace: float) -> None:
        """Those calls that run get `grace` seconds.

        Others don't hold up the end: a page may look on for as long as it is open.
        """
        self.announce_shutdown()
        if self._listener is None:
            return
        idle = asyncio.ensure_future(self._draining.idle())
        await asyncio.wait([idle], timeout=grace)
        idle.cancel()
        self._listener.close()
        for connection in list(self._state.connections):
            assert isinstance(connection, H11Protocol)  # as made above
            if connection.cycle is None or connection.cycle.response_complete:
                connection.shutdown()
            else:
                connection.transport.abort()
        await asyncio.sleep(0)  # connections learn that they are closed
        tasks = list(self._state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_LAST_WORD_SECONDS)

    def _tell_time(self) -> None:
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
