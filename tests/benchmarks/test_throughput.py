"""The throughput benchmark with a tiny model through the real three processes, and the way to others' drivers."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import benchmarks
from benchmarks.answers import Answer, WrongAnswer, figures
from benchmarks.line_process import ChildFailed, LineProcess
from benchmarks.measuring import Measurement, equal_first_tokens
from benchmarks.probe import Probe
from benchmarks.processes import cpu_seconds, peak_memory_mb, process_tree, proportional_memory_mb
from benchmarks.request_sets import RequestSet, TokenRequest, request_set
from benchmarks.serving import OctavoServe, StackFailed
from tests.services.e2e.tiny_model import VOCAB_SIZE

_FIGURES = {"tokens_per_s", "cpu_s_per_1k", "ttft_ms_p50"}


@pytest.fixture(scope="module")
def probe() -> Iterator[Probe]:
    with Probe(memory_bytes=1 << 20) as probe:
        yield probe


@pytest.fixture(scope="module")
def stack(model: Path) -> Iterator[OctavoServe]:
    with OctavoServe(model, {"dtype": "float32", "kv-memory": "16MiB", "host-memory": "0", "threads": 1}) as stack:
        yield stack


def test_a_round_and_the_summary(stack: OctavoServe, probe: Probe) -> None:
    seed = random.getrandbits(20)
    measurement = Measurement(stack, "alpaca", seed, count=4, vocab_size=VOCAB_SIZE)
    round_ = measurement.run_round(probe)
    assert all(round_[name] > 0 for name in _FIGURES), (seed, round_)
    assert len(round_["probe"]) == 4
    assert all(speed > 0 for speed in round_["probe"].values())
    summary = measurement.summary()
    assert all(summary[name] == pytest.approx(round_[name], abs=0.01) for name in _FIGURES)
    assert summary["start_s"] > 0
    # Four processes of Python, one with torch in it.
    assert 200 < summary["rss_mb"] < 20_000
    assert (summary["requests"], summary["output_tokens"]) == (4, 4 * 58)
    assert summary["dtype"] == "float32"
    assert summary["kernels"]


def test_all_processes_count(stack: OctavoServe) -> None:
    pids = process_tree(stack.pid)
    assert len(pids) == 4
    before = cpu_seconds(pids)
    stack.run(request_set("alpaca", random.getrandbits(20), 8, VOCAB_SIZE))
    assert cpu_seconds(pids) > before
    assert peak_memory_mb(pids) >= proportional_memory_mb(pids) > 100


def test_what_was_sent_before_is_found_again(stack: OctavoServe) -> None:
    """Both answers begin alike, and their times are told apart."""
    prompt = [random.randrange(256, VOCAB_SIZE) for _ in range(300)]
    requests = RequestSet("ttft", [TokenRequest(prompt, 1), TokenRequest(prompt, 1, repeated=True)], at_once=False)
    new, repeated = stack.run(requests)
    assert new.token_ids == repeated.token_ids
    assert new.last <= repeated.sent
    found = figures(requests, [new, repeated], 1.0, 0.0)
    assert found["ttft_ms_p50"] == pytest.approx(1000 * (new.first - new.sent), abs=0.01)
    assert found["cached_ttft_ms_p50"] == pytest.approx(1000 * (repeated.first - repeated.sent), abs=0.01)


def test_a_stack_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(StackFailed, match="no such file or folder"):
        OctavoServe(tmp_path / "nothing")


def test_figures_of_known_answers() -> None:
    requests = RequestSet("alpaca", [TokenRequest([1], 2), TokenRequest([2], 3)], at_once=True)
    answers = [Answer(10.0, 10.5, 11.0, [1, 2]), Answer(10.0, 10.7, 12.5, [3, 4, 5])]
    found = figures(requests, answers, cpu_seconds=0.1, client_cpu_seconds=0.01)
    assert found["tokens_per_s"] == 2.0
    assert (found["cpu_s_per_1k"], found["client_cpu_s_per_1k"]) == (20.0, 2.0)
    assert found["ttft_ms_p50"] == 600.0
    with pytest.raises(WrongAnswer, match="request 1 of alpaca has 2 tokens, not 3"):
        figures(requests, [answers[0], answers[0]], 0.1, 0.0)


_DRIVER = """
import sys
from benchmarks.peers.driver import drive

class Echo:
    def __init__(self, model, settings):
        print("not an answer")
        self.settings = settings
    def details(self):
        return {"version": "1"} | self.settings
    def run(self, requests):
        for request in requests:
            for token in request.prompt[: request.output_tokens]:
                request.got([token])

drive(Echo)
"""


class EchoPeer:
    """A system whose driver answers with the prompt."""

    name = "echo"
    start_s = 0.5

    def __init__(self, folder: Path) -> None:
        script = folder / "echo_driver.py"
        script.write_text(_DRIVER)
        environment = os.environ | {"PYTHONPATH": str(Path(benchmarks.__file__).parent.parent)}
        command = [sys.executable, str(script), "--model", "any", "--option=size=3"]
        self.process = LineProcess(command, environment, folder / "log")
        self.pid = self.process.pid
        self.said = self.process.answer()["details"]

    def run(self, requests: RequestSet) -> list[Answer]:
        asked = [[request.prompt, request.output_tokens] for request in requests.requests]
        answers = self.process.ask({"requests": asked, "at_once": requests.at_once})["answers"]
        return [Answer(*answer) for answer in answers]

    def details(self) -> dict[str, str]:
        return self.said


def test_a_driver_gets_the_same_requests_and_is_measured_alike(tmp_path: Path, probe: Probe) -> None:
    peer = EchoPeer(tmp_path)
    try:
        assert peer.details() == {"version": "1", "size": "3"}
        prompt = [random.randrange(300) for _ in range(5)]
        requests = [TokenRequest(prompt, 2), TokenRequest(prompt[::-1], 4)]
        answers = peer.run(RequestSet("single", requests, at_once=False))
        assert [each.token_ids for each in answers] == [prompt[:2], prompt[::-1][:4]]
        assert answers[0].sent <= answers[0].first <= answers[0].last <= answers[1].sent
        one, other = (Measurement(peer, "shared-prefix", 3, count=2) for _ in range(2))
        assert one.run_round(probe)["tokens_per_s"] > 0
        other.run_round(probe)
        assert equal_first_tokens(one, other) == 1.0
        assert one.summary()["version"] == "1"
    finally:
        peer.process.stop()
    assert (tmp_path / "log").read_text() == "not an answer\n"


_SPINNING_DRIVER = """
import subprocess, sys
from benchmarks.peers.driver import drive
from benchmarks.processes import cpu_seconds

class Spinning:
    def __init__(self, model, settings):
        self.child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    def details(self):
        return {"child": self.child.pid}
    def run(self, requests):
        before = cpu_seconds([self.child.pid])
        while cpu_seconds([self.child.pid]) == before:
            pass
        for request in requests:
            request.got(request.prompt)
    def __del__(self):
        self.child.kill()

drive(Spinning)
"""


def state(pid: int) -> str:
    """R for a process that runs, T for one that is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def until(come_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not come_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_peers_other_processes_rest_between_its_turns(tmp_path: Path) -> None:
    script = tmp_path / "spinning_driver.py"
    script.write_text(_SPINNING_DRIVER)
    environment = os.environ | {"PYTHONPATH": str(Path(benchmarks.__file__).parent.parent)}
    driver = LineProcess([sys.executable, str(script), "--model", "any"], environment)
    try:
        child = driver.answer()["details"]["child"]
        for _ in range(2):
            driver.ask({"requests": [[[1], 1]], "at_once": True})
            until(lambda: state(child) == "T")
    finally:
        driver.stop()
    until(lambda: not Path(f"/proc/{child}").exists())


def test_a_child_that_ends_is_noticed(tmp_path: Path) -> None:
    child = LineProcess([sys.executable, "-c", "input(); raise SystemExit('no more')"], os.environ, tmp_path / "log")
    with pytest.raises(ChildFailed, match="ended"):
        child.ask({})
    child.stop()
