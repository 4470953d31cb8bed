"""How a process ends when something inside it breaks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from subprocess import PIPE

from services.process import BROKEN_EXIT_CODE

BREAKS = """
from services.config import ServiceConfig
from services.process import run_service

class Breaks:
    async def start(self): pass
    async def run(self): assert 1 == 2, "an invariant"
    async def stop(self): pass

run_service("breaks", ServiceConfig(), Breaks)
"""


def test_a_broken_invariant_ends_the_process_with_one_line_that_says_so() -> None:
    ended = subprocess.run([sys.executable, "-c", BREAKS], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == BROKEN_EXIT_CODE
    (line,) = ended.stderr.splitlines()
    entry = json.loads(line)
    assert entry["level"] == "critical"
    assert "AssertionError: an invariant" in entry["exception"]


STUCK = """
import time
from services.config import ServiceConfig
from services.process import run_service

class Stuck:
    async def start(self): pass
    async def run(self):
        self.hang()
    async def stop(self): pass
    def hang(self):
        while True:
            time.sleep(3600)

run_service("stuck", ServiceConfig(watchdog_seconds=1), Stuck)
"""


def test_a_process_whose_event_loop_is_stuck_ends_and_says_where_it_was() -> None:
    ended = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == BROKEN_EXIT_CODE
    (line,) = ended.stderr.splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["event"]) == ("critical", "the event loop is stuck")
    (stack,) = [stack for name, stack in entry["stacks"].items() if name.startswith("MainThread")]
    assert "in hang" in stack[-1]


WATCHED = """
import asyncio, os, time
from services.watchdog import Watchdog

async def main():
    loop = asyncio.get_running_loop()
    line = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(line), os.fdopen(0))
    with Watchdog(0.4, lambda: os._exit(70), interval=0.1):
        print("watched", flush=True)
        while await line.readline():
            time.sleep(0.1)  # busy, now and then
            print("alive", flush=True)

asyncio.run(main())
"""


def test_a_process_that_was_stopped_is_not_stuck() -> None:
    process = subprocess.Popen([sys.executable, "-c", WATCHED], stdin=PIPE, stdout=PIPE, text=True, bufsize=1)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "watched\n"
        for _ in range(2):
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.8)  # twice what it may be stuck for
            process.send_signal(signal.SIGCONT)
            process.stdin.write("?\n")
            assert process.stdout.readline() == "alive\n"
        process.stdin.close()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
