"""The benchmark of attention, on a small scale."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from executor.native import LibraryMissing, load_library

_ROOT = Path(__file__).parents[2]


def test_it_reports_every_case_and_a_summary():
    try:
        load_library()
    except LibraryMissing as reason:
        pytest.skip(str(reason))
    options = ["--heads", "smollm2", "--batch", "1", "2", "--context", "40", "--prefill", "20"]
    options += ["--memory-mib", "24", "--rounds", "1", "--threads", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.attention", *options], cwd=_ROOT, capture_output=True, text=True, check=True
    )
    *cases, summary = (json.loads(line) for line in done.stdout.splitlines())
    assert [(case["batch"], case["new_tokens"], case["context"]) for case in cases] == [
        (1, 1, 40),
        (2, 1, 40),
        (1, 20, 20),
    ]
    for case in cases:
        assert all(case[name] > 0 for name in ("layer_us", "gb_s", "gflops", "times_torch", "copy_gb_s", "read_gb_s"))
    assert summary["threads"] == 1
    assert all(value > 0 for value in summary.values())
