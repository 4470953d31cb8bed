"""`octavo top`: how a stack is, on screens of any size, once, and as JSON."""

from __future__ import annotations

import json
import os
import pty
import queue
import random
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from octavo.v1 import memory_pb2
from octavo.v1 import monitoring_pb2 as pb
from services.cli.app import run
from services.cli.charts import columns, counts_in_bins, parts_of, sparkline
from services.cli.top.history import History, averages
from services.cli.top.screen import Focus, Order, View, count, screen, sort_requests
from tests.ports import free_port
from tests.services.scripted_monitoring import ScriptedMonitoring, a_status, monitored

ROOT = Path(__file__).parents[2]
START = 1_700_000_000
STATES = (
    pb.REQUEST_STATE_RUNNING,
    pb.REQUEST_STATE_SWAPPED,
    pb.REQUEST_STATE_WAITING,
    pb.REQUEST_STATE_ENDED,
)


@pytest.fixture
def servicer() -> ScriptedMonitoring:
    servicer = ScriptedMonitoring()
    servicer.requests = [a_request(number) for number in range(8)]
    history = [a_status(number) for number in range(20)]
    servicer.statuses.put(pb.WatchStatusResponse(history=history, status=a_status(20)))
    return servicer


@pytest.fixture
def address(servicer: ScriptedMonitoring) -> Iterator[str]:
    with monitored(servicer) as address:
        yield address


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


def a_request(number: int) -> pb.RequestView:
    request = pb.RequestView(
        request_id=f"request-{number}",
        tenant=f"tenant-{number % 3}",
        state=STATES[number % 4],
        reason="not enough free blocks" if number % 4 == 2 else "",
        prompt_tokens=100,
        computed_tokens=60 if number % 8 == 0 else 100,
        cached_tokens=16,
        output_tokens=number,
        max_tokens=50,
        executor="10.0.0.1:50053",
    )
    request.arrived.FromSeconds(START + 10 - number)
    if request.state == pb.REQUEST_STATE_ENDED:
        request.ended.FromSeconds(START + 15)
    return request


def a_view(seconds: int = 20) -> View:
    view = View("gateway:50051", requests=[a_request(number) for number in range(8)])
    history = [a_status(number) for number in range(seconds)]
    view.take(pb.WatchStatusResponse(history=history, status=a_status(seconds)))
    return view


def drawn(view: View, width: int, height: int | None = None) -> list[str]:
    console = Console(width=width, height=height, color_system=None, highlight=False)
    options = console.options if height is None else console.options.update(width=width, height=height)
    lines = console.render_lines(screen(view, width, height), options, pad=False)
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


# Charts


def test_charts(rng: random.Random) -> None:
    assert sparkline([0, 1, 4, 8], 6) == "   ▁▄█"
    assert sparkline([1, 2, 3], 2) == "▅█"
    assert columns([0.001, 16, 8], 2, 16) == [" █ ", "▁██"]
    assert columns([], 3) == ["", "", ""]
    assert counts_in_bins([0, 1, 5, 9.9, 10, 99], 2, 10.0) == [2, 4]
    for _ in range(200):
        width, parts = rng.randint(1, 60), [rng.choice([0, 1, rng.randint(0, 1000)]) for _ in range(3)]
        sizes = parts_of(width, parts, max(sum(parts), rng.randint(1, 2000)))
        assert sum(sizes) <= width
        assert all(size >= 0 for size in sizes)
        if width >= 3:
            assert [size > 0 for size in sizes] == [part > 0 for part in parts]


# History


def test_rates_come_from_counters() -> None:
    history = History()
    history.add(a_status(number, generated=10 * number**2 or 1) for number in range(5))
    assert history.rates(lambda counters: counters.generated_tokens) == [9, 30, 50, 70]
    assert history.rate(lambda counters: counters.prompt_tokens) == 1000
    assert history.share(
        lambda counters: counters.cached_prompt_tokens, lambda counters: counters.prompt_tokens
    ) == pytest.approx(0.25)
    history.add([a_status(3), a_status(4)])  # as after a reconnect: nothing is counted twice
    assert len(history.rates(lambda counters: counters.steps)) == 4


def test_counters_that_begin_anew_are_no_negative_rate() -> None:
    history = History()
    history.add([a_status(1, generated=500), a_status(2, generated=3)])
    assert history.rates(lambda counters: counters.generated_tokens) == [0]


def test_nothing_is_known_at_first() -> None:
    history = History()
    assert history.rate(lambda counters: counters.steps) is None
    assert history.share(lambda counters: counters.steps, lambda counters: counters.steps) is None


def test_history_is_five_minutes() -> None:
    history = History()
    history.add(a_status(number) for number in range(1000))
    assert history.seconds == 300


def test_averages_keep_the_newest_apart() -> None:
    assert averages([1, 2, 3, 4, 5], 10) == [1, 2, 3, 4, 5]
    assert averages([1, 2, 3, 4, 5], 3) == [1, 2.5, 4.5]
    assert averages([], 3) == []


# The screen


def test_what_is_on_the_screen() -> None:
    words = " ".join(" ".join(drawn(a_view(), 130)).split())
    for each in (
        "tiny on gateway:50051 ready",
        "22:13:40 UTC",
        "3 running 3 waiting 1 swapped batch of 3: 64 prefill + 3 decode tokens",
        "in 1000 tokens/s",
        "out 100 tokens/s",
        "prefix hits 25.0 % preemptions 7 (2 by swap) waste 3.0 % sharing 1.50x",
        "blocks of 16 tokens, 1 MiB",
        "50.0 % 500 + 300 of 1000 (500 MiB of 1000 MiB)",
        "tenant-2 2 1 4 200 10 0 - 500 1",
        "request-0 tenant-0 running 60/100 16 0/50 10.00 s",
        "waiting 100 16 2/50 12.00 s - 10.0.0.1:50053 not enough free blocks",
        "request-3 tenant-0 ended 100 16 3/50 8.00 s",
    ):
        assert each in words


def test_the_bars_are_true() -> None:
    bars = [line for line in drawn(a_view(), 120) if "█" in line and "device" in line]
    assert len(bars) == 2
    for bar in bars:
        sizes = [bar.count(mark) for mark in "█▓░"]
        assert [size / sum(sizes) for size in sizes] == pytest.approx([0.5, 0.3, 0.2], abs=0.03)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 18), (132, 43), (200, 60)])
def test_it_fits_any_terminal(width: int, height: int, rng: random.Random) -> None:
    for _ in range(4):
        view = a_view(rng.randint(0, 400))
        assert view.status is not None
        view.focus, view.order = rng.choice(list(Focus)), rng.choice(list(Order))
        view.trouble = rng.choice(["", "the gateway is away; asking again"])
        for number in range(rng.randint(0, 8)):
            view.status.executors.append(
                memory_pb2.ExecutorMemory(
                    executor=f"a-host-with-a-long-name-{number}.example.org:50053",
                    device=memory_pb2.PoolState(num_blocks=10**6, free_blocks=10**6),
                )
            )
        view.status.tenants.extend(a_status(tenants=rng.randint(0, 40)).tenants)
        view.requests = [a_request(number) for number in range(rng.randint(0, 200))]
        lines = drawn(view, width, height)
        assert len(lines) == height
        assert max(map(len, lines)) <= width
        assert "octavo top" in lines[0]
        assert "leave" in lines[-1]
        assert any(line.startswith(("tenants", "requests")) for line in lines)


def test_before_anything_has_come_and_without_executors() -> None:
    assert drawn(View("gateway:1"), 80, 24)[0] == "octavo top  no model on gateway:1  asking"
    view = View("gateway:1")
    view.take(pb.WatchStatusResponse(status=pb.Status(state_available=False)))
    title = drawn(view, 120)[0]
    assert "no executor is there" in title
    assert "durability is degraded" in title


def test_orders() -> None:
    requests = [a_request(number) for number in range(8)]
    first = {order: [each.request_id[-1] for each in sort_requests(requests, order)] for order in Order}
    assert first[Order.STATE] == list("04152637")
    assert first[Order.AGE] == list("65421073")
    assert first[Order.TOKENS] == list("76543210")
    assert first[Order.TENANT] == list("03614725")


def test_numbers() -> None:
    assert [count(number) for number in (0, 9.5, 950, 9999, 12_345, 4.56e6)] == [
        "0.0",
        "9.5",
        "950",
        "9999",
        "12.3k",
        "4.6M",
    ]


# The command


@pytest.mark.parametrize("flags", [["--once"], []])
def test_once(address: str, flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["top", "--address", address, "--sort", "tenant", *flags]) == 0
    shown = capsys.readouterr().out
    for words in ("tiny on", "requests by tenant", "request-7", "500 + 300 of 1000"):
        assert words in shown
    assert "leave" not in shown


def test_json(address: str, servicer: ScriptedMonitoring, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["top", "--address", address, "--json", "--once"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    look = json.loads(line)
    assert look["status"]["executors"][0]["device"]["referenced_blocks"] == 500
    assert len(look["requests"]) == 8
    assert servicer.asked == [pb.ListRequestsRequest(num_ended=50)]


def test_json_goes_on(address: str, servicer: ScriptedMonitoring) -> None:
    process = start(address, "--json", "--interval", "0.5", stdout=subprocess.PIPE)
    assert process.stdout is not None
    servicer.statuses.put(pb.WatchStatusResponse(status=a_status(21)))
    steps = [json.loads(process.stdout.readline())["status"]["counters"]["steps"] for _ in range(2)]
    process.kill()
    process.communicate()
    assert steps == ["20", "21"]
    assert servicer.intervals == [0.5]


def test_refused_and_unreachable(
    address: str, servicer: ScriptedMonitoring, capsys: pytest.CaptureFixture[str]
) -> None:
    servicer.key = "secret"
    for flags in ([], ["--once"], ["--json"]):
        assert run(["top", "--address", address, *flags]) == 1
        assert capsys.readouterr().err == "octavo: UNAUTHENTICATED: an API key is needed\n"
    assert run(["top", "--address", f"127.0.0.1:{free_port()}"]) == 2
    assert "cannot reach" in capsys.readouterr().err
    assert run(["top", "--interval", "0"]) == 2


def start(address: str, *flags: str, **streams: int) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
    return subprocess.Popen(
        [sys.executable, "-m", "services.cli.app", "top", "--address", address, *flags],
        cwd=ROOT,
        env=environment | {"TERM": "xterm"},
        start_new_session=True,
        **streams,  # type: ignore[call-overload]
    )


class Terminal:
    """A terminal of 100 x 30 with what has been written to it."""

    def __init__(self) -> None:
        import fcntl
        import termios

        self.parent, self.child = pty.openpty()
        fcntl.ioctl(self.child, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self._pieces: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while data := os.read(self.parent, 65536):
                self._pieces.put(data.decode("utf-8", "replace"))
        except OSError:  # the program has left
            pass

    def see(self, words: str) -> None:
        """Returns when these are written; what came before is forgotten."""
        deadline, seen = time.monotonic() + 30, ""
        while words not in seen:
            assert time.monotonic() < deadline, seen
            try:
                seen += self._pieces.get(timeout=0.1)
            except queue.Empty:
                continue

    def press(self, key: str) -> None:
        os.write(self.parent, key.encode())


def test_live_over_a_restart_of_the_gateway() -> None:
    """Keys, a gateway that goes away and comes back, and q."""
    port = free_port()
    terminal = Terminal()

    def gateway() -> ScriptedMonitoring:
        servicer = ScriptedMonitoring()
        servicer.requests = [a_request(number) for number in range(8)]
        return servicer

    first, second = gateway(), gateway()
    first.statuses.put(pb.WatchStatusResponse(history=[a_status(1)], status=a_status(2)))
    with monitored(first, port) as address:
        process = start(address, stdin=terminal.child, stdout=terminal.child, stderr=terminal.child)
        try:
            first.statuses.put(pb.WatchStatusResponse(status=a_status(3)))
            terminal.see("requests by state")
            terminal.press("s")
            terminal.see("requests by age")
            terminal.press("t")
            terminal.see("tenant-1")
            for number in range(4, 8):
                first.statuses.put(pb.WatchStatusResponse(status=a_status(number)))
            terminal.see("22:13:27 UTC")
        except BaseException:
            process.kill()
            raise
    try:
        terminal.see("the gateway is away")
        second.statuses.put(pb.WatchStatusResponse(history=[a_status(8)], status=a_status(9)))
        with monitored(second, port):
            terminal.see("22:13:29 UTC")
            terminal.press("q")
            assert process.wait(30) == 0
    finally:
        process.kill()
