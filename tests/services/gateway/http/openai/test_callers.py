"""Who is calling over HTTP, what that allows, and what becomes of calls while the gateway ends."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.api_keys import ApiKey, new_key
from gateway.scope import ScopeLevel
from gateway.tenants import Tenant
from octavo.v1 import kvmanager_pb2
from services.state.tenants_file import TenantsFile
from tests.services.gateway.gateway_bench import bench, ids, one_answer
from tests.services.scripted_kvmanager import eventually, tokens

PATHS = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize")


@pytest.fixture
async def key(tmp_path: Path) -> str:
    """Of a tenant that may ask once a minute."""
    key, key_id, secret_hash = new_key(secrets.randbits)
    keys = (ApiKey(key_id, secret_hash, "search", ScopeLevel.APP),)
    tenant = Tenant("acme", keys, requests_per_minute=1)
    await TenantsFile(tmp_path / "tenants.json").change("acme", lambda before: tenant)
    return key


async def test_a_key_is_asked_for_before_anything_else(model: Path, tmp_path: Path, key: str) -> None:
    async with (
        bench(model, one_answer, tenants_file=str(tmp_path / "tenants.json")) as here,
        httpx.AsyncClient(base_url=here.url) as client,
    ):
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/version")).status_code == 200
        refused = [await client.post(path, content=b"no json") for path in PATHS]
        refused += [await client.get(path) for path in ("/v1/models", f"/v1/models/{model.name}")]
        for response in refused:
            error = response.json()["error"]
            assert (response.status_code, error["type"]) == (401, "authentication_error")
            assert response.headers["www-authenticate"] == "Bearer"

        client.headers["authorization"] = f"Bearer {key}"
        assert (await client.get("/v1/models")).status_code == 200
        wide = await client.post("/v1/completions", json={"prompt": "abc", "cache_scope": "tenant"})
        assert (wide.status_code, wide.json()["error"]["code"]) == (403, "scope_too_wide")
        answered = [await client.post("/v1/completions", json={"prompt": "abc"}) for _ in range(3)]
    limited = next(response for response in answered if response.status_code != 200)
    assert (limited.status_code, limited.json()["error"]["type"]) == (429, "rate_limit_error")
    assert 0 < int(limited.headers["retry-after"]) <= 60
    assert {each.tenant for each in here.kvmanager.submissions} <= {"acme"}


async def test_a_trusted_proxy_says_who_is_calling(model: Path) -> None:
    async with (
        bench(model, one_answer, trusted_identity=True) as here,
        httpx.AsyncClient(base_url=here.url) as client,
    ):
        headers = {"Octavo-Tenant": "beta", "X-Request-Id": "from-the-proxy"}
        answered = await client.post("/v1/completions", json={"prompt": "abc"}, headers=headers)
        twice = [*headers.items(), ("octavo-tenant", "acme")]
        unclear = await client.post("/v1/completions", json={"prompt": "abc"}, headers=twice)
    assert answered.json()["id"] == "cmpl-from-the-proxy"
    assert (here.submission.tenant, here.submission.request_id) == ("beta", "from-the-proxy")
    assert unclear.status_code == 401


def endless(submission: kvmanager_pb2.Submission) -> Sequence[kvmanager_pb2.AttachResponse]:
    return [tokens(submission, ids("ab"))]


async def test_what_does_not_end_in_time_is_told_so(model: Path) -> None:
    """A stream by an event, what has not begun by its status; while it ends, others are sent away."""
    async with bench(model, endless, drain_seconds=0.2) as here, httpx.AsyncClient(base_url=here.url) as client:
        body: dict[str, Any] = {"prompt": "abc"}
        whole = asyncio.ensure_future(client.post("/v1/completions", json=body))
        stream = asyncio.ensure_future(client.post("/v1/completions", json=body | {"stream": True}))
        await eventually(lambda: len(here.kvmanager.submissions) == 2)
        stopping = asyncio.ensure_future(here.service.stop())
        await asyncio.sleep(0)
        health = await client.get("/health")
        late = await client.post("/v1/completions", json=body)
        assert (health.status_code, health.json()["status"]) == (503, "draining")
        assert (late.status_code, late.json()["error"]["code"]) == (503, "draining")
        assert ((await whole).status_code, (await whole).json()["error"]["code"]) == (503, "draining")
        *_, last, _ = (await stream).text.split("\n\n")
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "draining"
        await stopping


async def test_nonsense_is_refused_and_the_gateway_goes_on(model: Path) -> None:
    deep = b'{"messages":' + b"[" * 100_000
    schemas = [b'{"prompt": "abc", "guided_json": %b1%b}' % (b'{"a":' * depth, b"}" * depth) for depth in (900, 990)]
    bodies = [b"", b"null", b"{", b"\x00" * 100, deep, b'{"prompt": 1e400}', b'{"prompt": {}}']
    async with bench(model, one_answer) as here, httpx.AsyncClient(base_url=here.url) as client:
        for path in PATHS:
            for body in bodies:
                response = await client.post(path, content=body)
                assert response.status_code == 400, body[:50]
                assert response.json()["error"]["message"]
        for schema in schemas:
            assert (await client.post("/v1/completions", content=schema)).status_code == 400
        assert (await client.post("/v1/completions", json={"prompt": "abc"})).status_code == 200
