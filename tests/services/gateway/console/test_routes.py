"""The console's paths: what everybody gets, what needs a key, and that the data are those of the messages."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import zipfile
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from struct import iter_unpack
from typing import Any

import httpx
import pytest

from octavo.v1 import common_pb2, memory_pb2, monitoring_pb2
from services.config import GatewayConfig
from services.gateway.http.console.assets import FOLDER, Assets
from services.gateway.http.console.block_json import BlockEncoder, TableEncoder
from services.gateway.http.console.routes import console_routes
from services.gateway.http.server import HttpServer
from tests.services.gateway.console.simulated_stack import (
    RUNNING,
    SWAPPED,
    SimulatedStack,
    SimulatedViewers,
)

ROOT = Path(__file__).parents[4]
KEYS = {"the-operator": None, "of-acme": "acme", "of-globex": "globex"}
EXECUTOR = "10.0.0.1:1"


@asynccontextmanager
async def serving(
    stack: SimulatedStack, keys: dict[str, str | None]
) -> AsyncIterator[tuple[httpx.AsyncClient, SimulatedViewers]]:
    server, viewers = HttpServer(GatewayConfig(model="m", http_port=0)), SimulatedViewers(keys)
    await server.start(console_routes(stack, viewers))  # type: ignore[arg-type]
    try:
        async with httpx.AsyncClient(base_url=f"http://{server.address}", timeout=30) as client:
            yield client, viewers
    finally:
        await server.stop(0)


@pytest.fixture
def stack() -> SimulatedStack:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    stack = SimulatedStack(
        seed, start=1.8e9, executors=(EXECUTOR,), num_device=300, num_host=200, tenants=("acme", "globex"), target=8
    )
    for _ in range(60):
        stack.tick()
    while not stack.ended or {life.view.tenant for life in stack.live if life.view.output_tokens} < {"acme", "globex"}:
        stack.tick()
    return stack


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


class Events:
    """Reads a stream of events."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.aiter_lines()

    async def next(self) -> tuple[str, Any]:
        name = ""
        async for line in self._lines:
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                return name, json.loads(line.removeprefix("data: "))
        raise EOFError

    async def next_of(self, name: str) -> Any:
        while True:
            found, data = await self.next()
            if found == name:
                return data


# The page


async def test_the_page_is_for_everybody_and_may_only_do_what_it_needs(stack: SimulatedStack) -> None:
    async with serving(stack, KEYS) as (client, _):
        redirected = await client.get("/console")
        assert redirected.status_code == 307
        assert redirected.headers["location"] == "console/"
        page = await client.get("/console/")
        assert page.status_code == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.headers["cache-control"] == "no-cache"
        assert page.headers["x-content-type-options"] == "nosniff"
        policy = page.headers["content-security-policy"]
        assert policy.startswith("default-src 'self';")
        assert "unsafe" not in policy
        assert "http" not in policy


async def test_a_file_is_sent_again_only_when_it_has_changed(stack: SimulatedStack) -> None:
    async with serving(stack, {}) as (client, _):
        for path in Assets().paths:
            answer = await client.get(f"/console/{path}")
            assert answer.content == (FOLDER / path).read_bytes()
            again = await client.get(f"/console/{path}", headers={"if-none-match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
        types = {path.rpartition(".")[2]: (await client.get(f"/console/{path}")) for path in Assets().paths}
        kinds = {suffix: answer.headers["content-type"].partition(";")[0] for suffix, answer in types.items()}
        assert kinds == {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@pytest.mark.parametrize("path", ["no-such.js", "../routes.py", "..%2froutes.py", "js/", "css", "js/../../assets.py"])
async def test_nothing_else_is_served(stack: SimulatedStack, path: str) -> None:
    async with serving(stack, {}) as (client, _):
        assert (await client.get(f"/console/{path}")).status_code == 404


def test_the_page_holds_nothing_inline_and_names_no_other_host() -> None:
    for path in Assets().paths:
        text = (FOLDER / path).read_text("utf-8")
        hosts = re.findall(r"(?:https?:)?//[\w.-]+\.\w+", re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
        assert {host for host in hosts if "www.w3.org/2000/svg" not in f"{host}/2000/svg"} <= {"http://www.w3.org"}, (
            path
        )
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", text), path
    page = (FOLDER / "index.html").read_text("utf-8")
    assert "<style" not in page
    assert not re.search(r"\sstyle=|\son\w+=", page)
    assert not re.search(r"<script(?![^>]*\ssrc=)", page)


def test_the_wheel_brings_the_page(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    without_compiler = os.environ | {"PATH": "", "CXX": ""}
    subprocess.run(command, cwd=ROOT, env=without_compiler, capture_output=True, check=True, timeout=60)
    (wheel,) = tmp_path.iterdir()
    served = {f"services/gateway/http/console/static/{path}" for path in Assets().paths}
    assert served <= set(zipfile.ZipFile(wheel).namelist())


# Who sees what

DATA = ["status", "blocks", "requests", "requests/any", "prefix-tree"]


@pytest.mark.parametrize("path", DATA)
async def test_data_need_a_key(stack: SimulatedStack, path: str) -> None:
    async with serving(stack, KEYS) as (client, _):
        for headers in ({}, bearer("wrong")):
            answer = await client.get(f"/console/api/{path}", headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "api_key_needed"


async def test_a_tenant_sees_its_own_share(stack: SimulatedStack) -> None:
    other = next(life.view.request_id for life in stack.live if life.view.tenant == "globex")
    async with serving(stack, KEYS) as (client, _):
        client.headers.update(bearer("of-acme"))
        requests = (await client.get("/console/api/requests")).json()["requests"]
        assert {request["tenant"] for request in requests} == {"acme"}
        assert (await client.get(f"/console/api/requests/{other}")).status_code == 404
        async with client.stream("GET", "/console/api/status") as response:
            status = await Events(response).next_of("status")
        assert status["tenant"] == "acme"
        async with client.stream("GET", "/console/api/blocks") as response:
            events = Events(response)
            assert set((await events.next_of("blocks"))["newOwners"]) == {"acme"}
            assert {request["tenant"] for request in (await events.next_of("tables"))["requests"]} == {"acme"}


async def test_a_revoked_key_ends_the_stream(stack: SimulatedStack) -> None:
    async with serving(stack, KEYS) as (client, viewers):
        headers = bearer("of-acme")
        async with client.stream("GET", "/console/api/status", headers=headers) as response:
            events = Events(response)
            await events.next()
            viewers.keys = {"the-operator": None}
            with pytest.raises(EOFError):
                await events.next_of("there is none of this name")


# The data


async def test_status_comes_with_its_history_and_goes_on(stack: SimulatedStack) -> None:
    async with serving(stack, {}) as (client, _), client.stream("GET", "/console/api/status") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"
        events = Events(response)
        first = await events.next_of("status")
        assert first["tenant"] is None
        assert len(first["samples"]["time"]) == len(stack.history) + 1
        assert len({len(column) for column in first["samples"].values()}) == 1
        device = stack.pools[EXECUTOR][0].count()
        assert first["samples"]["used"][-1] == device.referenced_blocks
        assert first["samples"]["blocks"][-1] == 300
        assert first["status"]["waitingRequests"] == sum(life.view.state == 1 for life in stack.live)
        stack.tick()
        second = await events.next_of("status")
        assert len(second["samples"]["time"]) == 1
        assert second["samples"]["time"][0] > first["samples"]["time"][-1]


async def test_the_map_is_the_stack_s_and_follows_it(stack: SimulatedStack) -> None:
    async with serving(stack, {}) as (client, _), client.stream("GET", "/console/api/blocks") as response:
        events, picture = Events(response), Picture()
        await events_until_like(events, picture, stack)
        for _ in range(3):
            stack.tick()
            await events_until_like(events, picture, stack)


async def events_until_like(events: Events, picture: Picture, stack: SimulatedStack) -> None:
    """Reads on until blocks and tables are the stack's."""
    async with asyncio.timeout(30):
        while not (picture.blocks == blocks_of(stack) and picture.tables == tables_of(stack)):
            picture.take(*await events.next())


def blocks_of(stack: SimulatedStack) -> dict[int, tuple[int, int, str, bool, bytes]]:
    """All that are not free, by their index."""
    cells = [cell for pool in stack.pools[EXECUTOR] for cell in pool.cells]
    return {
        i: (cell.references, cell.fill, cell.owner, cell.cached, cell.identity or bytes(8))
        for i, cell in enumerate(cells)
        if cell.references or cell.cached
    }


def tables_of(stack: SimulatedStack) -> dict[str, tuple[bool, list[list[int]]]]:
    return {
        life.view.request_id: (life.view.state == SWAPPED, life.tables)
        for life in stack.live
        if life.view.state in (RUNNING, SWAPPED)
    }


class Picture:
    """What somebody who reads the stream knows."""

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[int, int, str, bool, bytes]] = {}
        self.owners = [""]
        self._tables: dict[int, tuple[str, bool, list[list[int]]]] = {}

    @property
    def tables(self) -> dict[str, tuple[bool, list[list[int]]]]:
        return {name: (host, tables) for name, host, tables in self._tables.values()}

    def take(self, name: str, data: dict[str, Any]) -> None:
        if name == "tables":
            for key in data["gone"]:
                del self._tables[key]
            for each in data["requests"]:
                old = self._tables[each["key"]][2] if each["key"] in self._tables else []
                old = [*old, *([[]] * len(each["tables"]))]
                tables = [old[s][:kept] + numbers("i", rest) for s, (kept, rest) in enumerate(each["tables"])]
                self._tables[each["key"]] = each["id"], each["host"], tables
            return
        if data["snapshot"]:
            self.blocks = {}
        self.owners += data["newOwners"]
        identities = b64decode(data["identities"])
        columns = [
            numbers(kind, data[key])
            for kind, key in zip("iHHHB", ("ids", "refs", "fills", "owners", "cached"), strict=True)
        ]
        for k, (i, refs, fill, owner, cached) in enumerate(zip(*columns, strict=True)):
            self.blocks[i] = refs, fill, self.owners[owner], bool(cached), identities[8 * k : 8 * k + 8]
            if not refs and not cached:
                del self.blocks[i]


def numbers(kind: str, text: str) -> list[int]:
    return [number for (number,) in iter_unpack(f"<{kind}", b64decode(text))]


def test_a_map_of_100_000_blocks_is_small() -> None:
    identities = random.Random(5)
    blocks = [
        memory_pb2.Block(
            block_id=i % 80_000,
            tier=common_pb2.TIER_DEVICE if i < 80_000 else common_pb2.TIER_HOST,
            reference_count=1,
            owner=f"tenant {i % 40}",
            fill=16,
            identity_prefix=identities.randbytes(8),
        )
        for i in range(100_000)
    ]
    encoder = BlockEncoder()
    message = monitoring_pb2.WatchBlocksResponse(
        executor="e", snapshot=True, num_device_blocks=80_000, num_host_blocks=20_000, blocks=blocks
    )
    assert len(json.dumps(encoder.encode(message))) < 3_000_000, "once"
    change = monitoring_pb2.WatchBlocksResponse(
        executor="e", num_device_blocks=80_000, num_host_blocks=20_000, blocks=blocks[:256]
    )
    assert len(json.dumps(encoder.encode(change))) < 8_000, "each time that 256 sequences grow"


def test_tables_are_sent_as_changes() -> None:
    encoder = TableEncoder()

    def listed(*tables: list[int], state: int = RUNNING) -> monitoring_pb2.ListRequestsResponse:
        view = monitoring_pb2.RequestView(request_id="r", tenant="t", state=state, executor="e")
        for table in tables:
            view.sequences.add(block_ids=b"".join(i.to_bytes(4, "little") for i in table))
        return monitoring_pb2.ListRequestsResponse(requests=[view])

    def sent(*tables: list[int], **kwargs: int) -> list[tuple[int, list[int]]] | None:
        change = encoder.encode(listed(*tables, **kwargs))
        if change is None:
            return None
        return [(kept, numbers("i", rest)) for kept, rest in change["requests"][0]["tables"]]

    assert sent([1, 2, 3]) == [(0, [1, 2, 3])]
    assert sent([1, 2, 3]) is None
    assert sent([1, 2, 3, 4]) == [(3, [4])]
    assert sent([1, 2, 9, 4], [1, 2]) == [(2, [9, 4]), (0, [1, 2])], "a copy, and a second sequence"
    assert sent([5, 6], state=SWAPPED) == [(0, [5, 6])]
    assert encoder.encode(listed(state=monitoring_pb2.REQUEST_STATE_ENDED)) == {"requests": [], "gone": [0]}


async def test_requests_and_a_life(stack: SimulatedStack) -> None:
    life = next(life for life in stack.ended)
    async with serving(stack, {}) as (client, _):
        listed = {each["id"]: each for each in (await client.get("/console/api/requests")).json()["requests"]}
        assert listed[life.view.request_id]["state"] == "ended"
        assert listed[life.view.request_id]["ended"] == life.view.ended.ToMilliseconds()
        assert len(listed) == len(stack.live) + min(100, len(stack.ended))
        live = (await client.get("/console/api/requests?ended=0")).json()["requests"]
        assert len(live) == len(stack.live)
        timeline = (await client.get(f"/console/api/requests/{life.view.request_id}")).json()
        kinds = [decision["kind"] for decision in timeline["decisions"]]
        assert kinds[0] == "queued"
        assert kinds[-1] == "finished"
        assert "first token" in kinds


async def test_a_request_s_id_may_be_any_text(stack: SimulatedStack) -> None:
    for request_id in ("a/b", "50 %", "ä?#&", "../status"):
        stack.submit(request_id=request_id)
        async with serving(stack, {}) as (client, _):
            answer = await client.get(
                "/console/api/requests/" + "".join(f"%{byte:02x}" for byte in request_id.encode())
            )
            assert answer.json()["request"]["id"] == request_id


@pytest.mark.parametrize(
    "query", ["requests?ended=-1", "requests?ended=1001", "requests?ended=x", "prefix-tree?max_nodes=0"]
)
async def test_bad_numbers_are_named(stack: SimulatedStack, query: str) -> None:
    async with serving(stack, {}) as (client, _):
        answer = await client.get(f"/console/api/{query}")
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] in ("ended", "max_nodes")


async def test_the_prefix_tree(stack: SimulatedStack) -> None:
    async with serving(stack, {}) as (client, _):
        tree = (await client.get("/console/api/prefix-tree")).json()
        known = {""}
        for node in tree["nodes"]:
            assert node["parent_identity_prefix"] in known
            known.add(node["identity_prefix"])
        assert {use["owner"] for use in tree["scopes"]} == {"acme", "globex"}
