"""A small soak of the real thing: `octavo serve`, many clients, every answer judged."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from services.model_store import SMOLLM2

pytestmark = [
    pytest.mark.slow,
    pytest.mark.demo_model,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not SMOLLM2.path.is_file(), reason="the demo model is not in the cache (make demo fetches it)"),
]


def test_a_few_mixed_requests_and_a_killed_executor() -> None:
    sizes = ["--requests", "16", "--clients", "8", "--reruns", "2", "--searches", "1", "--timeout-minutes", "12"]
    command = [sys.executable, "-m", "benchmarks.soak", *sizes]
    soak = subprocess.run(command, capture_output=True, text=True, check=False)
    assert soak.returncode == 0, soak.stdout[-4000:] + soak.stderr[-4000:]
    lines = [json.loads(line) for line in soak.stdout.splitlines()]
    assert lines[-1]["ok"]
    assert lines[-1]["failures"] == 0
    assert [line["process"] for line in lines if line["event"] == "kill"] == ["executor-2"]
