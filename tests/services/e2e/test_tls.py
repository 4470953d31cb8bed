"""A whole stack over TLS, as a user starts it, through a rotation of its certificates."""

from __future__ import annotations

import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import grpc
import httpx
import pytest

from octavo.client import Client, OctavoError
from octavo.v1 import kvmanager_pb2, kvmanager_pb2_grpc
from services.rpc.roles import role_name
from tests.services.e2e.processes import ROOT, Process, Processes, eventually
from tests.services.e2e.stack import EXECUTOR_SETTINGS
from tests.services.e2e.tiny_model import Reference

pytestmark = pytest.mark.slow

OCTAVO = [sys.executable, "-m", "services.cli.app"]
PROCESSES = ("gateway", "kvmanager", "executor")


def octavo(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
    return subprocess.run(
        [*OCTAVO, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = octavo("certs", str(tmp_path / "certificates"), "--days=2")
    assert made.returncode == 0, made
    return tmp_path / "certificates"


@pytest.fixture
def launcher(processes: Processes, model: Path, folder: Path) -> Iterator[Process]:
    settings = {**EXECUTOR_SETTINGS, "port": 0, "http_port": 0, "model": model, "tls_dir": folder, "host_memory": "0"}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    launcher = processes.other("serve", [*OCTAVO, "--stop-with-stdin", "serve", *flags])
    launcher.start()
    yield launcher
    launcher.kill()


class Served:
    """What the launcher says of its processes."""

    def __init__(self, launcher: Process) -> None:
        self._launcher = launcher
        eventually(self._all_serve, what="all serve")
        found = [re.search(rf"{name} serves on (\S+), process (\d+)", launcher.output()) for name in PROCESSES]
        self.addresses = {name: match[1] for name, match in zip(PROCESSES, found, strict=True) if match}
        self.pids = {name: int(match[2]) for name, match in zip(PROCESSES, found, strict=True) if match}
        url = re.search(r"Octavo serves .* and on https://(\S+)", launcher.output())
        self.http = url[1] if url else ""

    def _all_serve(self) -> bool:
        assert self._launcher.running, self._launcher.output()
        return "Octavo serves" in self._launcher.output()


def test_a_stack_over_tls_whose_certificates_are_renewed(
    launcher: Process, folder: Path, reference: Reference, processes: Processes
) -> None:
    served = Served(launcher)
    expected = reference.greedy(reference.encode("The sheet is"), 20)

    def answer() -> list[int]:
        with Client(served.addresses["gateway"], tls_ca=folder / "ca.pem") as client:
            responses = client.generate("The sheet is", max_tokens=20, temperature=0, ignore_eos=True, timeout=60)
            return [token_id for response in responses for token_id in response.token_ids]

    assert answer() == expected
    with Client(served.addresses["gateway"]) as client, pytest.raises(OctavoError):
        client.models(timeout=2)
    http_is_over_tls_too(served, folder)
    all_listen_only_where_told(served)
    commands_work_over_tls(served, folder)
    only_roles_get_in(served, folder)

    assert octavo("certs", str(folder), "--renew", "--days=3").returncode == 0
    assert answer() == expected
    for name in ("executor", "kvmanager"):
        # What comes back has the new certificate only; the others make new connections to it.
        os.kill(served.pids[name], signal.SIGKILL)
        assert eventually(lambda: answers(answer), what=f"an answer without the first {name}") == expected
    said = launcher.output()
    assert "certificate is read again" in said
    assert "new certificate is not used" not in said
    launcher.terminate()
    assert launcher.wait() == 0


def answers(answer) -> list[int] | None:  # type: ignore[no-untyped-def]
    try:
        tokens: list[int] = answer()
    except OctavoError:
        return None
    return tokens


def all_listen_only_where_told(served: Served) -> None:
    for name, pid in served.pids.items():
        http = [served.http] if name == "gateway" else []
        assert set(listening(pid)) == {served.addresses[name], *http}


def listening(pid: int) -> list[str]:
    """Addresses that a process listens on."""
    sockets = {os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir() if file.exists() or file.is_symlink()}
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in sockets:
                host, _, port = local.partition(":")
                found.append(f"{_decode_host(host)}:{int(port, 16)}")
    return found


def _decode_host(digits: str) -> IPv4Address | IPv6Address:
    """An address as /proc/net/tcp has it: words of four bytes, each with its lowest byte first."""
    words = [bytes.fromhex(digits[start : start + 8])[::-1] for start in range(0, len(digits), 8)]
    address = ip_address(b"".join(words))
    return getattr(address, "ipv4_mapped", None) or address


def http_is_over_tls_too(served: Served, folder: Path) -> None:
    trusted = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    body = {"prompt": "The sheet is", "max_tokens": 3}
    with httpx.Client(base_url=f"https://{served.http}", verify=trusted, timeout=30) as client:
        assert client.get("/health").status_code == 200
        assert client.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] > 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"https://{served.http}/health")
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{served.http}/health")


def commands_work_over_tls(served: Served, folder: Path) -> None:
    ca = f"--tls-ca={folder / 'ca.pem'}"
    gateway = f"--address={served.addresses['gateway']}"
    assert "context" in octavo("models", gateway, ca).stdout
    said = octavo("generate", gateway, ca, "--prompt=The", "--max-tokens=3", "--temperature=0")
    assert said.returncode == 0, said
    assert octavo("health", gateway, ca).returncode == 0
    assert octavo("health", gateway).returncode == 2
    inner = f"--address={served.addresses['executor']}"
    assert octavo("health", inner, ca).returncode == 2
    pair = [f"--tls-cert={folder / 'executor.pem'}", f"--tls-key={folder / 'executor-key.pem'}"]
    healthy = octavo("health", inner, ca, *pair)
    assert healthy.returncode == 0, healthy
    assert "octavo.v1.ExecutorService: SERVING" in healthy.stdout


def only_roles_get_in(served: Served, folder: Path) -> None:
    def ask(role: str) -> kvmanager_pb2.GetMemoryMapResponse:
        files = [(folder / name).read_bytes() for name in ("ca.pem", f"{role}-key.pem", f"{role}.pem")]
        options = [("grpc.ssl_target_name_override", role_name("kvmanager"))]
        credentials = grpc.ssl_channel_credentials(*files)
        with grpc.secure_channel(served.addresses["kvmanager"], credentials, options) as channel:
            stub = kvmanager_pb2_grpc.KVManagerServiceStub(channel)
            return stub.GetMemoryMap(kvmanager_pb2.GetMemoryMapRequest(), timeout=10)

    assert ask("operator").num_blocks > 0
    with pytest.raises(grpc.RpcError) as caught:
        ask("executor")
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_certificates_that_the_launcher_does_not_know_of_are_refused(folder: Path, model: Path) -> None:
    environment = os.environ | {"OCTAVO_EXECUTOR_TLS_CERT": str(folder / "executor.pem")}
    command = [*OCTAVO, "serve", f"--model={model}"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "OCTAVO_EXECUTOR_TLS_CERT" in done.stderr
    assert "--tls-dir" in done.stderr


def test_a_folder_without_certificates_ends_the_start(tmp_path: Path, model: Path) -> None:
    done = octavo("serve", f"--model={model}", "--port=0", "--http-port=0", f"--tls-dir={tmp_path}")
    assert done.returncode == 2
    assert "tls_cert: can't read" in done.stderr
