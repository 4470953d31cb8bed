"""Supervision of three child processes: how they start, die, come back and stop."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from services.config import ConfigError, ExecutorConfig
from services.launcher import SERVICES, Addresses, Stack, StackError, octavo_command
from services.ports import check_free
from services.progress import Progress
from tests.ports import free_port
from tests.services import stand_in

REPOSITORY = Path(__file__).parents[2]
PATIENCE_SECONDS = 30.0


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def parents() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that a test started; whatever is left of them is killed."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def start_parent(parents: list[subprocess.Popen[str]], journal: Path, behaviour: str = "") -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, stand_in.__file__, "parent", str(journal), behaviour],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        # As a shell does for what it runs in the foreground: Ctrl-C goes to the whole group.
        start_new_session=True,
    )
    parents.append(process)
    return process


def serving_line(parent: subprocess.Popen[str]) -> str:
    assert parent.stdout is not None
    return parent.stdout.readline()


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for children in tasks for child in children.read_text().split()]


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


async def async_until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(until, condition)


def events(journal: Path) -> list[str]:
    return journal.read_text().splitlines() if journal.exists() else []


def first_of_free_ports(count: int) -> int:
    """The first of so many in a row."""
    while True:
        first = free_port()
        with suppress(ConfigError):
            for number in range(count):
                check_free("127.0.0.1", first + number)
            return first


async def test_all_three_serve_and_stop_in_order(journal: Path) -> None:
    said: list[str] = []
    async with Stack(stand_in.command(journal), port=0, http_port=0, log=said.append) as stack:
        pids = stack.pids
        assert set(pids) == set(SERVICES)
        assert sorted(events(journal)) == ["executor serves", "gateway serves", "kvmanager serves"]
        assert len({*stack.addresses.by_name().values(), stack.addresses.http}) == 4
        assert stack.http_url == f"http://{stack.addresses.http}"
        assert any(line.startswith(f"gateway serves on {stack.addresses.gateway}") for line in said)
    assert events(journal)[3:] == ["gateway stops", "kvmanager stops", "executor stops"]
    assert not any(alive(pid) for pid in pids.values())
    assert stack.pids == {}


async def test_progress_goes_to_whoever_waits_for_the_start(journal: Path) -> None:
    said: list[str] = []
    shown: list[Progress] = []
    stack = Stack(stand_in.command(journal, "executor:loads"), port=0, http_port=0, log=said.append)
    try:
        await stack.start(shown.append)
        assert shown == [Progress("Converting weights", 7, 10)]
        assert "executor: ready" in said
        assert not any("progress" in line for line in said)
        # A child that is started again shows nothing: nobody waits.
        os.kill(stack.pids["executor"], signal.SIGKILL)
        await async_until(lambda: any("progress" in line for line in said))
        assert len(shown) == 1
    finally:
        await stack.stop()


async def test_a_killed_child_comes_back_at_the_same_address(journal: Path) -> None:
    said: list[str] = []
    async with Stack(stand_in.command(journal), port=0, http_port=0, log=said.append) as stack:
        before, addresses = stack.pids, stack.addresses
        os.kill(before["kvmanager"], signal.SIGKILL)
        await async_until(lambda: events(journal).count("kvmanager serves") == 2)
        assert stack.addresses == addresses
        assert stack.pids["kvmanager"] != before["kvmanager"]
        assert stack.pids["gateway"] == before["gateway"]
        assert "kvmanager died (killed by SIGKILL); it is started again" in said


async def test_several_executors(journal: Path) -> None:
    """Each has its own port, dies and comes back alone; they are stopped together, after those that use them."""
    executors = ["executor-1", "executor-2", "executor-3"]
    said: list[str] = []
    async with Stack(stand_in.command(journal), port=0, http_port=0, num_executors=3, log=said.append) as stack:
        before, addresses = stack.pids, stack.addresses
        assert set(before) == {"gateway", "kvmanager", *executors}
        assert len(set(addresses.by_name().values())) == 5
        os.kill(before["executor-2"], signal.SIGKILL)
        await async_until(lambda: events(journal).count("executor-2 serves") == 2)
        assert stack.addresses == addresses
        changed = {name for name, pid in stack.pids.items() if pid != before[name]}
        assert changed == {"executor-2"}
        assert "executor-2 died (killed by SIGKILL); it is started again" in said
    stops = [event.removesuffix(" stops") for event in events(journal) if event.endswith("stops")]
    assert stops[:2] == ["gateway", "kvmanager"]
    assert sorted(stops[2:]) == executors


async def test_a_standby_comes_and_goes_with_the_kv_manager(journal: Path) -> None:
    """Either dies and comes back alone; the gateway is told of both."""
    async with Stack(stand_in.command(journal), port=0, http_port=0, standby=True, log=lambda line: None) as stack:
        before = stack.pids
        assert set(before) == {"gateway", "kvmanager-1", "kvmanager-2", "executor"}
        os.kill(before["kvmanager-1"], signal.SIGKILL)
        await async_until(lambda: events(journal).count("kvmanager-1 serves") == 2)
        assert stack.pids["kvmanager-2"] == before["kvmanager-2"]
        gateway = octavo_command({"model": "/models/x"})("gateway", stack.addresses)
        assert f"--kvmanager={','.join(stack.addresses.kvmanagers)}" in gateway
        (kvmanager,) = {tuple(octavo_command({})(f"kvmanager-{n}", stack.addresses)[:-1]) for n in (1, 2)}
        assert f"--executors={stack.addresses.executors[0]}" in kvmanager
    assert events(journal)[-4] == "gateway stops"
    assert events(journal)[-1] == "executor stops"


async def test_executors_take_one_port_after_the_other(journal: Path) -> None:
    first = first_of_free_ports(3)
    async with Stack(
        stand_in.command(journal), port=0, http_port=0, executor_port=first, num_executors=3, log=lambda line: None
    ) as stack:
        assert stack.addresses.executors == tuple(f"127.0.0.1:{first + number}" for number in range(3))


def test_there_must_be_a_port_for_each_executor(journal: Path) -> None:
    with pytest.raises(ConfigError, match="executor_port: from 65534 on there are no 3 ports"):
        Stack(stand_in.command(journal), http_port=0, executor_port=65534, num_executors=3)


async def test_a_child_that_dies_again_and_again_is_given_up(journal: Path) -> None:
    stack = Stack(stand_in.command(journal), port=0, http_port=0, log=lambda line: None)
    await stack.start()

    async def keep_killing() -> None:
        last = 0
        while True:
            pid = stack.pids.get("executor", last)
            if pid != last:
                last = pid
                os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.01)

    killer = asyncio.create_task(keep_killing())
    try:
        with pytest.raises(StackError, match=r"executor died 6 times in 60 s, last: killed by SIGKILL") as caught:
            await asyncio.wait_for(stack.wait(), PATIENCE_SECONDS)
    finally:
        killer.cancel()
        await stack.stop()
    assert caught.value.exit_code == 1
    assert stack.pids == {}


@pytest.mark.parametrize(
    ("behaviour", "message", "exit_code"),
    [
        ("executor:fails", "executor: the model is missing", 2),
        ("gateway:crashes", "gateway: segment violated", 1),
    ],
)
async def test_a_child_that_cannot_start_ends_everything(
    journal: Path, behaviour: str, message: str, exit_code: int
) -> None:
    stack = Stack(stand_in.command(journal, behaviour), port=0, http_port=0, log=lambda line: None)
    with pytest.raises(StackError) as caught:
        await stack.start()
    assert str(caught.value) == message
    assert caught.value.exit_code == exit_code
    assert stack.pids == {}


async def test_a_child_that_does_not_stop_is_killed(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.launcher._STOP_MARGIN_SECONDS", 0.2)
    said: list[str] = []
    stack = Stack(stand_in.command(journal, "gateway:stays"), port=0, http_port=0, drain_seconds=0, log=said.append)
    await stack.start()
    pids = stack.pids
    await stack.stop()
    assert not any(alive(pid) for pid in pids.values())
    assert any("gateway did not stop" in line for line in said)


async def test_a_port_in_use_is_found_before_anything_starts(journal: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"cannot listen on 127.0.0.1:{port}: Address already in use"):
            await Stack(stand_in.command(journal), port=port, http_port=0).start()
    assert events(journal) == []


async def test_a_free_port_that_somebody_else_takes_is_chosen_again(journal: Path) -> None:
    thieves: list[socket.socket] = []

    def steal_once(name: str, addresses: Addresses) -> list[str]:
        stolen = not thieves and name == "executor"
        if stolen:
            thieves.append(socket.create_server(("127.0.0.1", int(addresses.executors[0].rpartition(":")[2]))))
        return [*stand_in.command(journal, "executor:crashes" if stolen else "")(name, addresses)]

    try:
        async with Stack(steal_once, port=0, http_port=0, log=lambda line: None) as stack:
            assert stack.addresses.executors != (f"127.0.0.1:{thieves[0].getsockname()[1]}",)
            assert set(stack.pids) == set(SERVICES)
    finally:
        thieves[0].close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_stops_everything(
    parents: list[subprocess.Popen[str]], journal: Path, number: signal.Signals
) -> None:
    parent = start_parent(parents, journal)
    line = serving_line(parent).rstrip()
    assert re.fullmatch(r"Octavo serves nothing on 127\.0\.0\.1:\d+ and on http://127\.0\.0\.1:\d+", line)
    children = children_of(parent.pid)
    assert len(children) == 3
    os.killpg(parent.pid, number)
    _, stderr = parent.communicate(timeout=PATIENCE_SECONDS)
    assert parent.returncode == 0
    assert "Traceback" not in stderr
    assert events(journal)[3:] == ["gateway stops", "kvmanager stops", "executor stops"]
    assert not any(alive(child) for child in children)


def test_a_second_ctrl_c_kills(parents: list[subprocess.Popen[str]], journal: Path) -> None:
    parent = start_parent(parents, journal, "gateway:stays")
    serving_line(parent)
    children = children_of(parent.pid)
    os.killpg(parent.pid, signal.SIGINT)
    until(lambda: "gateway stops" in events(journal))
    assert parent.poll() is None
    os.killpg(parent.pid, signal.SIGINT)
    parent.communicate(timeout=PATIENCE_SECONDS)
    assert not any(alive(child) for child in children)


def test_a_killed_parent_leaves_no_children(parents: list[subprocess.Popen[str]], journal: Path) -> None:
    parent = start_parent(parents, journal, "gateway:stays")
    serving_line(parent)
    children = children_of(parent.pid)
    assert len(children) == 3
    parent.kill()
    parent.wait()
    until(lambda: not any(alive(child) for child in children))


def test_the_parent_passes_on_why_a_child_cannot_start(parents: list[subprocess.Popen[str]], journal: Path) -> None:
    parent = start_parent(parents, journal, "executor:fails")
    stdout, stderr = parent.communicate(timeout=PATIENCE_SECONDS)
    assert parent.returncode == 2
    assert stdout == ""
    assert stderr.splitlines()[-1] == "octavo: executor: the model is missing"


def test_children_get_the_settings_that_they_know(tmp_path: Path) -> None:
    settings = {"model": "/models/x", "kv_memory": "1GiB", "max_sequences": 8, "prefix_caching": False, "threads": None}
    build = octavo_command(settings, tmp_path / "octavo.toml")
    addresses = Addresses("127.0.0.1:1", ("127.0.0.1:2",), ("127.0.0.1:4", "[::1]:3"))
    executor, kvmanager = build("executor-2", addresses), build("kvmanager", addresses)
    assert executor[executor.index("executor") + 1 :] == [
        "--model=/models/x",
        "--kv-memory=1GiB",
        "--max-sequences=8",
        "--host=::1",
        "--port=3",
    ]
    assert {"--max-sequences=8", "--no-prefix-caching", "--executors=127.0.0.1:4,[::1]:3", "--port=2"} <= set(kvmanager)
    assert not any("kv-memory" in argument for argument in kvmanager)
    assert "--no-http" in build("gateway", addresses)
    assert {"--http", "--http-port=5"} <= set(build("gateway", replace(addresses, http="127.0.0.1:5")))
    assert executor[executor.index("--config") + 1] == str(tmp_path / "octavo.toml")
    assert ExecutorConfig(model="x", host="::1", port=3).address == addresses.executors[1]
