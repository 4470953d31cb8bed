"""A gRPC server with health and reflection, from its start to a drained end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, TypeAlias

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from services.config import ConfigError, ServiceConfig

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
"""A call's context, as handlers get it."""

log = logging.getLogger(__name__)

LAST_WORD_SECONDS = 0.5
"""What streams that nobody counts get at the end, such as health watches: enough to say that it is the end."""

INNER_MESSAGE_BYTES = 64 * 1024 * 1024
"""Longest message between the services: a step's new sequences carry whole prompts."""


def _message_lengths(max_received: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", max_received),
        ("grpc.max_send_message_length", INNER_MESSAGE_BYTES),
    ]


def inner_channel(address: str) -> grpc.aio.Channel:
    """A connection from one service to the next, which is tried again soon after it breaks."""
    reconnecting = [
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # A new connection is tried at once, whatever an earlier one to the same address is waiting for.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    return grpc.aio.insecure_channel(address, options=[*_message_lengths(INNER_MESSAGE_BYTES), *reconnecting])


class RpcServer:
    """One process's gRPC server.

    Health is NOT_SERVING until `set_serving(True)`, for "" and for each service.
    """

    def __init__(self, config: ServiceConfig, services: Sequence[str], max_message_bytes: int = INNER_MESSAGE_BYTES):
        self._config = config
        # Without SO_REUSEPORT a port in use is an error instead of a second listener.
        self.grpc = grpc.aio.server(options=[*_message_lengths(max_message_bytes), ("grpc.so_reuseport", 0)])
        self._names = ["", *services]
        self._health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        reflection.enable_server_reflection([*services, "grpc.health.v1.Health", reflection.SERVICE_NAME], self.grpc)
        self._serving = False
        self._num_calls = 0
        self._no_calls = asyncio.Event()
        self._no_calls.set()

    async def start(self) -> str:
        """Binds and listens. Returns the address.

        Raises:
            ConfigError: the port is in use, or the host is not this machine's.
        """
        await self._set_health(False)
        try:
            port = self.grpc.add_insecure_port(self._config.address)
        except RuntimeError:
            raise ConfigError(f"can't listen on {self._config.address}: the port is in use or not allowed") from None
        await self.grpc.start()
        address = self._config.address.rpartition(":")[0] + f":{port}"
        log.info("listening", extra={"address": address})
        return address

    async def set_serving(self, serving: bool) -> None:
        """What grpc.health.v1 answers from now on."""
        if serving != self._serving:
            self._serving = serving
            await self._set_health(serving)

    async def announce_shutdown(self) -> None:
        """NOT_SERVING from here on, whatever else happens."""
        await self._health.enter_graceful_shutdown()

    def count(self, context: Context) -> None:
        """This call is one that `stop` waits for."""
        self._num_calls += 1
        self._no_calls.clear()
        context.add_done_callback(self._call_done)  # type: ignore[arg-type] # the stubs know only a class of theirs

    def _call_done(self, context: Context) -> None:
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
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in self._names:
            await self._health.set(name, status)
