"""A gRPC server with health and reflection, from its start to a drained end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from services.config import ConfigError, ServiceConfig
from services.ports import is_loopback
from services.rpc import health
from services.rpc.callers import OnlyRoles
from services.rpc.channel import KEEPALIVE, MESSAGE_BYTES
from services.rpc.roles import Role
from services.rpc.tls import Identity

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
"""A call's context, as handlers get it."""

log = logging.getLogger(__name__)

LAST_WORD_SECONDS = 0.5
"""What streams that nobody counts get at the end, such as health watches: enough to say that it is the end."""

_PUBLIC_KEEPALIVE = [
    # A client whose machine is gone is noticed, and its requests end.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
# Clients may look as well, so often.
_PINGS_TAKEN = [("grpc.http2.min_ping_interval_without_data_ms", 500)]


class RpcServer:
    """One process's gRPC server.

    Health is NOT_SERVING until `set_serving(True)`, for "" and for each service.

    Args:
        config: where it listens, and its certificate.
        services: full names.
        callers: which roles may call them; an inner server's clients need certificates that name one where it has one
            itself. None: a public server, for whoever reaches it.
        max_message_bytes: longest message taken.

    Attributes:
        draining: set when nothing new is taken any more, for calls that take requests in as long as they are open.

    Raises:
        ConfigError: the certificate can't be used.
    """

    def __init__(
        self,
        config: ServiceConfig,
        services: Sequence[str],
        *,
        callers: Collection[Role] | None = None,
        max_message_bytes: int = MESSAGE_BYTES,
    ) -> None:
        self._config = config
        self._is_inner = callers is not None
        self._identity = None if config.server_tls is None else Identity(config.server_tls)
        guards = [OnlyRoles(services, callers)] if callers is not None and self._identity is not None else []
        options = [
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", MESSAGE_BYTES),
            # Without SO_REUSEPORT a port in use is an error instead of a second listener.
            ("grpc.so_reuseport", 0),
            *(KEEPALIVE if self._is_inner else _PUBLIC_KEEPALIVE),
            *_PINGS_TAKEN,
        ]
        self.grpc = grpc.aio.server(interceptors=guards, options=options)
        self._names = ["", *services]
        self._health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        reflection.enable_server_reflection([*services, "grpc.health.v1.Health", reflection.SERVICE_NAME], self.grpc)
        self._serving = False
        self._reports: set[asyncio.Task[None]] = set()
        self._num_calls = 0
        self._no_calls = asyncio.Event()
        self._no_calls.set()
        self.draining = asyncio.Event()

    async def start(self) -> str:
        """Binds and listens. Returns the address.

        Raises:
            ConfigError: the port is in use, or the host is not this machine's.
        """
        await self._set_health(False)
        try:
            port = self._add_port()
        except RuntimeError:
            raise ConfigError(f"can't listen on {self._config.address}: the port is in use or not allowed") from None
        await self.grpc.start()
        address = self._config.address.rpartition(":")[0] + f":{port}"
        log.info("listening", extra={"address": address})
        return address

    def _add_port(self) -> int:
        address = self._config.address
        if self._identity is None:
            if self._is_inner and not is_loopback(self._config.host):
                log.warning("others may reach this inner service without a certificate", extra={"address": address})
            return self.grpc.add_insecure_port(address)
        credentials = self._identity.server_credentials(client_certificates=self._is_inner)
        return self.grpc.add_secure_port(address, credentials)

    async def set_serving(self, serving: bool) -> None:
        """What grpc.health.v1 answers from now on."""
        if serving != self._serving:
            self._serving = serving
            await self._set_health(serving)

    async def set_health(self, name: str, serving: bool) -> None:
        """What grpc.health.v1 answers for one further name."""
        await self._health.set(name, _status(serving))

    def report_state(self, available: bool) -> None:
        """Whether the state store is there. For a store to call back."""
        report = asyncio.ensure_future(self.set_health(health.STATE, available))
        self._reports.add(report)
        report.add_done_callback(self._reports.discard)

    async def announce_shutdown(self) -> None:
        """NOT_SERVING from here on, whatever else happens."""
        self.draining.set()
        await self._health.enter_graceful_shutdown()

    def count(self, context: Context) -> None:
        """This call is one that `stop` waits for."""
        self._begin_call()
        context.add_done_callback(lambda _: self._end_call())  # type: ignore[arg-type] # the stubs know only a class of theirs

    @contextmanager
    def counting(self) -> Iterator[None]:
        """What goes on in here is waited for as a call is: a request among others of one stream."""
        self._begin_call()
        try:
            yield
        finally:
            self._end_call()

    def _begin_call(self) -> None:
        self._num_calls += 1
        self._no_calls.clear()

    def _end_call(self) -> None:
        self._num_calls -= 1
        if not self._num_calls:
            self._no_calls.set()

    async def stop(self, grace: float) -> None:
        """Takes no new calls; those that run and are counted get `grace` seconds.

        Others don't hold up the end: a health watch stays open for as long as its client likes.
        """
        stopped = asyncio.ensure_future(self.grpc.stop(grace))
        no_calls = asyncio.ensure_future(self._no_calls.wait())
        await asyncio.wait([stopped, no_calls], return_when=asyncio.FIRST_COMPLETED)
        no_calls.cancel()
        await self.grpc.stop(LAST_WORD_SECONDS)
        await stopped

    async def _set_health(self, serving: bool) -> None:
        for name in self._names:
            await self.set_health(name, serving)


def _status(serving: bool) -> health_pb2.HealthCheckResponse.ServingStatus.ValueType:
    return health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
