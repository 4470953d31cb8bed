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


def test_sixty_mixed_requests_from_sixteen_clients() -> None:
    command = [sys.executable, "-m", "benchmarks.soak", "--requests", "60", "--reruns", "4", "--timeout-minutes", "12"]
    soak = subprocess.run(command, capture_output=True, text=True, check=False)
    assert soak.returncode == 0, soak.stdout[-4000:] + soak.stderr[-4000:]
    summary = json.loads(soak.stdout.splitlines()[-1])
    assert summary["ok"]
    assert summary["failures"] == 0
