"""A Redis behind TLS: its certificate is checked, and ours is shown."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from services.state.store import StateUnavailable
from tests.services.e2e.redis_server import RedisServer
from tests.services.state.conftest import OpenStore

make_certificates = pytest.importorskip("services.certificates", reason="needs cryptography").make_certificates


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    make_certificates(tmp_path, ("localhost",), 1, datetime.now(timezone.utc))
    return tmp_path


@pytest.fixture
async def tls_address(certificates: Path, redis_server: RedisServer) -> AsyncIterator[str]:
    """Where Redis is to be found over TLS by those who show a certificate. The package's Redis itself has no TLS."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates / "ca.pem")
    context.load_cert_chain(certificates / "kvmanager.pem", certificates / "kvmanager-key.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    redis_address = redis_server.url.removeprefix("redis://").partition("/")[0].split(":")

    async def bridge(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            to_redis, from_redis = reader, writer
            redis_reader, redis_writer = await asyncio.open_connection(*redis_address)
            await asyncio.gather(copy(to_redis, redis_writer), copy(redis_reader, from_redis))

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
        target.close()

    server = await asyncio.start_server(bridge, "127.0.0.1", 0, ssl=context)
    yield f"localhost:{server.sockets[0].getsockname()[1]}"
    server.close()


def url(address: str, **options: Path) -> str:
    return f"rediss://{address}/0?" + "&".join(f"{name}={path}" for name, path in options.items())


async def test_over_tls(tls_address: str, certificates: Path, open_redis: OpenStore) -> None:
    ours = {"ssl_certfile": certificates / "gateway.pem", "ssl_keyfile": certificates / "gateway-key.pem"}
    store = await open_redis(url(tls_address, ssl_ca_certs=certificates / "ca.pem", **ours))
    await store.executors.register("g", "10.0.0.3:1", "i")
    assert store.available


async def test_a_certificate_is_needed_on_both_sides(
    tls_address: str, certificates: Path, open_redis: OpenStore
) -> None:
    ours = {"ssl_certfile": certificates / "gateway.pem", "ssl_keyfile": certificates / "gateway-key.pem"}
    theirs = {"ssl_ca_certs": certificates / "ca.pem"}
    urls = {
        "an authority that nobody knows": url(tls_address, **ours),
        "a name that it does not have": url(tls_address.replace("localhost", "127.0.0.1"), **ours, **theirs),
        "none of ours": url(tls_address, **theirs),
    }
    for fault, faulty in urls.items():
        store = await open_redis(faulty)
        assert not store.available, fault
        with pytest.raises(StateUnavailable):
            await store.executors.list("g")
