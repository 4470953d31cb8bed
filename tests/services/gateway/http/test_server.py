"""The HTTP server itself: how the gateway says that it is ready, what it refuses, and how it ends."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from octavo.v1 import kvmanager_pb2
from services.certificates import make_certificates, renew_certificates
from services.config import ConfigError, GatewayConfig
from services.gateway.http.server import HttpServer
from services.gateway.server import GatewayService
from tests.services.gateway.gateway_bench import bench, one_answer, save_bytes_tokenizer
from tests.services.scripted_kvmanager import MODEL


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_bytes_tokenizer(tmp_path)


class Holding:
    """A route that answers when it is told to, and says how it ended otherwise."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.release = asyncio.Event()
        self.cancelled = False

    async def answer(self, request: Request) -> Response:
        body = await request.body()
        self.entered.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return JSONResponse({"bytes": len(body)})


@asynccontextmanager
async def serving(endpoint: Any, **settings: Any) -> AsyncIterator[tuple[HttpServer, httpx.AsyncClient]]:
    server = HttpServer(GatewayConfig(model="m", http_port=0, **settings))
    await server.start([Route("/work", endpoint, methods=["POST"]), Route("/look", endpoint)])
    try:
        async with httpx.AsyncClient(base_url=f"http://{server.address}", timeout=30) as client:
            yield server, client
    finally:
        await server.stop(0)


async def count(request: Request) -> Response:
    return JSONResponse({"bytes": len(await request.body())})


async def test_health_says_whether_it_is_ready(model: Path) -> None:
    async with bench(model, one_answer) as made, httpx.AsyncClient(base_url=made.url) as client:
        answer = await client.get("/health")
        assert (answer.status_code, answer.json()) == (200, {"status": "ok", "state": "available"})
        assert set((await client.get("/version")).json()) == {"version"}
        assert "date" in answer.headers
        made.kvmanager.backend = kvmanager_pb2.BackendState(ready=False, model=MODEL, epoch=1)
        made.kvmanager.tell(kvmanager_pb2.AttachResponse(backend=made.kvmanager.backend))
        for _ in range(6000):
            answer = await client.get("/health")
            if answer.status_code == 503:
                break
            await asyncio.sleep(0.005)
        assert (answer.status_code, answer.json()["status"]) == (503, "not ready")


async def test_a_gateway_without_http(model: Path) -> None:
    async with bench(model, one_answer, http=False) as made:
        assert made.service.http_address == ""
        assert [response async for response in made.client.generate("abc")]


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/no/such", 404), ("GET", "/work", 405)])
async def test_what_is_not_there(method: str, path: str, status: int) -> None:
    async with serving(count) as (_, client):
        answer = await client.request(method, path)
        assert answer.status_code == status
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert path in error["message"]


async def test_what_goes_wrong_unexpectedly_is_said_without_details() -> None:
    async def fail(request: Request) -> Response:
        raise RuntimeError("a secret")

    async with serving(fail) as (_, client):
        answer = await client.post("/work")
        assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
        assert "secret" not in answer.text
        assert (await client.get("/no/such")).status_code == 404, "the server goes on"


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_too_long(chunked: bool) -> None:
    async def chunks(size: int) -> AsyncIterator[bytes]:
        for start in range(0, size, 700):
            yield b"x" * min(700, size - start)

    def content(size: int) -> Any:
        return chunks(size) if chunked else b"x" * size

    async with serving(count, max_message_bytes=2000) as (_, client):
        assert (await client.post("/work", content=content(2000))).json() == {"bytes": 2000}
        answer = await client.post("/work", content=content(2001))
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "request_too_long"
        assert (await client.post("/work", content=content(10))).json() == {"bytes": 10}, "the connection is still good"


async def test_running_calls_end_before_the_server_does() -> None:
    held = Holding()
    async with serving(held.answer) as (server, client):
        call = asyncio.ensure_future(client.post("/work", content=b"abc"))
        await held.entered.wait()
        stopping = asyncio.ensure_future(server.stop(30))
        await asyncio.sleep(0)
        refused = await client.post("/work")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert refused.headers["retry-after"] == "1"
        assert not stopping.done()
        held.release.set()
        assert (await call).json() == {"bytes": 3}
        await stopping
        with pytest.raises(httpx.ConnectError):
            await client.post("/work")


@pytest.mark.parametrize("path", ["/look", "/work"])
async def test_who_only_looks_or_takes_too_long_does_not_hold_up_the_end(path: str) -> None:
    held = Holding()
    async with serving(held.answer) as (server, client):
        call = asyncio.ensure_future(client.request("GET" if path == "/look" else "POST", path))
        await held.entered.wait()
        await server.stop(0.05 if path == "/work" else 60)
        assert held.cancelled
        with pytest.raises(httpx.RemoteProtocolError):
            await call


async def test_a_port_in_use(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = GatewayConfig(model=str(model), port=0, http_port=taken.getsockname()[1])
        service = GatewayService(config)
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{config.http_port}"):
            await service.start()
        await service.stop()


async def test_certificates_are_rotated_without_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    make_certificates(folder, (), 30, datetime.now(timezone.utc))
    settings = {"public_tls_cert": str(folder / "gateway.pem"), "public_tls_key": str(folder / "gateway-key.pem")}

    async def serial(address: str) -> str:
        context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname="localhost")
        writer.write(b"POST /work HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nab")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        shown: str = writer.get_extra_info("ssl_object").getpeercert()["serialNumber"]
        writer.close()
        return shown

    async with serving(count, **settings) as (server, _):
        first = await serial(server.address)
        assert await serial(server.address) == first
        renew_certificates(folder, (), 30, datetime.now(timezone.utc))
        assert await serial(server.address) != first
