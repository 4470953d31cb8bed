"""`/metrics` on the gateway's HTTP port, and who may read it."""

from __future__ import annotations

import secrets
from pathlib import Path

import httpx
import pytest

from services.config import GatewayConfig
from services.gateway.http.metrics import metrics_routes
from services.gateway.http.server import HttpServer
from services.state.tenants import EmbeddedTenants
from services.telemetry.metrics import Exposition
from tests.services.tenants.test_door import ACME, KEY, opened

OPERATOR_KEY = secrets.token_hex(16)


async def status(tenants: EmbeddedTenants, key: str | None, operator_key_file: str) -> tuple[int, str]:
    """What a reader with a key is answered."""
    door = await opened(tenants, operator_key_file=operator_key_file)
    server = HttpServer(GatewayConfig(model="m", http_port=0))
    await server.start(metrics_routes(Exposition(lambda: []), door.viewers))
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    try:
        async with httpx.AsyncClient(base_url=f"http://{server.address}") as client:
            answer = await client.get("/metrics", headers=headers)
            return answer.status_code, answer.text
    finally:
        await server.stop(0)


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "operator.key"
    path.write_text(OPERATOR_KEY)
    return str(path)


@pytest.mark.parametrize(("key", "code"), [(OPERATOR_KEY, 200), (KEY, 403), (None, 401), ("wrong", 401)])
async def test_where_there_are_tenants_the_operator_alone_reads(key: str | None, code: int, key_file: str) -> None:
    answered, text = await status(EmbeddedTenants([ACME]), key, key_file)
    assert answered == code
    assert ("process_cpu_seconds" in text) is (code == 200)


async def test_where_there_are_none_everybody_does(key_file: str) -> None:
    assert (await status(EmbeddedTenants([]), None, key_file))[0] == 200
