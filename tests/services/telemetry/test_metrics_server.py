"""The port for Prometheus."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.core import Metric

from services.config import ConfigError, ServiceConfig
from services.telemetry.metrics import Exposition, Metrics
from services.telemetry.metrics_server import MetricsServer
from tests.ports import free_port


def collect() -> Iterator[Metric]:
    yield Metrics("octavo_", {}).gauge("up", "It is.", 1)


async def test_it_answers_until_it_is_stopped() -> None:
    port = free_port()
    handler = signal.getsignal(signal.SIGTERM)
    server = MetricsServer(ServiceConfig(metrics_port=port), Exposition(collect))
    await server.start()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        answer = await client.get("/metrics", headers={"accept": "application/openmetrics-text;version=1.0.0"})
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("application/openmetrics-text")
        assert "octavo_up 1.0\n" in answer.text
        assert answer.text.endswith("# EOF\n")
        assert (await client.get("/")).status_code == 404
        assert (await client.post("/metrics")).status_code == 405
    assert signal.getsignal(signal.SIGTERM) is handler
    await server.stop()
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(f"http://127.0.0.1:{port}/metrics")


async def test_its_end_waits_for_no_reader() -> None:
    port, asked = free_port(), asyncio.Event()

    async def never() -> None:
        asked.set()
        await asyncio.Event().wait()

    server = MetricsServer(ServiceConfig(metrics_port=port), Exposition(collect, never))
    await server.start()
    (_, half), (_, asking) = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    half.write(b"GET /metrics HTTP/1.1\r\nHost:")
    asking.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    await asked.wait()
    await asyncio.wait_for(server.stop(), 30)
    for writer in (half, asking):
        writer.close()


async def test_a_port_that_is_taken() -> None:
    port = free_port()
    first, second = (MetricsServer(ServiceConfig(metrics_port=port), Exposition(collect)) for _ in range(2))
    await first.start()
    with pytest.raises(ConfigError, match=str(port)):
        await second.start()
    await second.stop()
    await first.stop()


async def test_none_where_none_was_asked_for() -> None:
    server = MetricsServer(ServiceConfig(), Exposition(collect))
    await server.start()
    await server.stop()
