"""Waits until a server says that it serves."""

import asyncio

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

_RETRY_SECONDS = 0.05
_CHANNEL_OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 100),
]


async def serving(address: str, service: str = "") -> None:
    """Returns when the server at ``host:port`` reports SERVING, however often it has to be started until then.

    Args:
        service: Of what; "" of itself.
    """
    host, _, port = address.rpartition(":")
    reachable = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
    async with grpc.aio.insecure_channel(f"{reachable}:{port}", options=_CHANNEL_OPTIONS) as channel:
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
