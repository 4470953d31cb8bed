"""How a process ends when something inside it breaks."""

from __future__ import annotations

import json
import subprocess
import sys

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
