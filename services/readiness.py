"""Waits until a server says that it serves."""

import asyncio

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.rpc.tls import Identity
from services.tls_files import TlsFiles

_RETRY_SECONDS = 0.05
# Where a server that listens everywhere is found.
_REACHABLE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
_CHANNEL_OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 100),
]


async def serving(address: str, service: str = "", tls: TlsFiles | None = None) -> None:
    """Returns when the server at ``host:port`` reports SERVING, however often it has to be started until then.

    Args:
        service: Of what; "" of itself.
        tls: The certificate that it shows; None: it has none.

    Raises:
        ConfigError: The certificate can't be used.
    """
    async with _open_channel(address, tls) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while True:
            try:
                async for answer in stub.Watch(health_pb2.HealthCheckRequest(service=service), wait_for_ready=True):
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        return
            except grpc.aio.AioRpcError:
                # Not there yet, or gone again.
                pass
            await asyncio.sleep(_RETRY_SECONDS)


def _open_channel(address: str, tls: TlsFiles | None) -> grpc.aio.Channel:
    host, _, port = address.rpartition(":")
    reachable = f"{_REACHABLE.get(host, host)}:{port}"
    if tls is None:
        return grpc.aio.insecure_channel(reachable, options=_CHANNEL_OPTIONS)
    credentials, name = Identity(tls).credentials_for_own_server()
    options = [*_CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", name)]
    return grpc.aio.secure_channel(reachable, credentials, options=options)
