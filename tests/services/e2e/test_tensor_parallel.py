"""An executor of two ranks, each a process: what clients see of it, and what is left when one of the two is killed."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.e2e.calls import Call, Caller
from tests.services.e2e.processes import Processes, Server, eventually
from tests.services.e2e.stack import EXECUTOR_SETTINGS, Stack, describe, make_executor
from tests.services.e2e.tiny_model import Reference

LONG: dict[str, Any] = {"max_tokens": 300, "ignore_eos": True}
PROMPTS = [f"of two halves {i}" for i in range(3)]


def other_rank(log: str) -> int:
    """Its process id, as of the executor's last start."""
    return int(re.findall(r'"rank started", "rank": 1, "pid": (\d+)', log)[-1])


def is_gone(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.fixture
def stack(processes: Processes, model: Path) -> Iterator[Stack]:
    stack = Stack(processes, model, make_executor(processes, model, tensor_parallel_size=2))
    stack.start()
    yield stack
    stack.close()
    stack.executor.kill()


def start_in_the_middle(caller: Caller) -> list[Call]:
    calls = [caller.start(prompt, **LONG) for prompt in PROMPTS]
    for call in calls:
        call.wait_for_tokens(5)
    return calls


def test_either_rank_is_killed_in_the_middle_of_a_step(stack: Stack, reference: Reference) -> None:
    """Neither waits for the other. Streams go on when the executor has been started again, as if nothing were."""
    executor = stack.executor
    assert describe(executor.address).tensor_parallel_size == 2
    rank = other_rank(executor.output())
    calls = start_in_the_middle(stack.caller)
    os.kill(rank, signal.SIGSTOP)  # the first rank now waits for it
    os.kill(rank, signal.SIGKILL)
    assert executor.wait() == 70
    assert re.search(r'"a rank has died.*"rank": 1, "reason": "killed by SIGKILL"', executor.output())
    executor.start()
    for prompt, call in zip(PROMPTS, calls, strict=True):
        assert call.result().token_ids == reference.greedy(reference.encode(prompt), LONG["max_tokens"])
    stack.wait_until_idle()

    rank = other_rank(executor.output())
    start_in_the_middle(stack.caller)
    executor.pause()  # the other rank now waits for it
    executor.kill()
    eventually(lambda: is_gone(rank), what="the other rank ends too")


def test_serve(processes: Processes, model: Path, reference: Reference) -> None:
    settings = {**EXECUTOR_SETTINGS, "port": 0, "http_port": 0, "host_memory": "1MiB", "tensor_parallel_size": 2}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "services.cli.app", "--stop-with-stdin", "serve", f"--model={model}", *flags]
    launcher = processes.other("serve", command)
    launcher.start()

    def said(pattern: str) -> str:
        def look() -> re.Match[str] | None:
            assert launcher.running, launcher.output()
            return re.search(pattern, launcher.output())

        match = eventually(look, what=pattern)
        assert match is not None
        return match.group(1)

    caller = Caller(said(r"Octavo serves \S+ on (\S+)"))
    rank = other_rank(launcher.output())
    answer = caller.generate("served by two", max_tokens=20, ignore_eos=True)
    assert answer.token_ids == reference.greedy(reference.encode("served by two"), 20)
    caller.close()
    launcher.terminate()
    assert launcher.wait() == 0
    assert is_gone(rank)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param(
            {"tensor_parallel_size": 3},
            "octavo: tensor_parallel_size 3: the model's 4 attention heads can't be divided by it",
            id="heads",
        ),
        pytest.param(
            {"tensor_parallel_size": 2, "kv_memory": "1KB"},
            r"octavo: (rank 1: )?kv_memory '1KB' is 500 bytes, less than one block of \d+ bytes",
            id="known only when the model is loaded",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_keeps_it_from_starting_is_one_line(
    processes: Processes, model: Path, settings: dict[str, Any], message: str
) -> None:
    executor: Server = make_executor(processes, model, **settings)
    executor.start()
    assert executor.wait() == 2
    lines = [line for line in executor.output().splitlines() if not line.startswith("{")]
    assert len(lines) == 1
    assert re.fullmatch(message, lines[0])
