"""The benchmark of the samplers measures each kind on both sides."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from executor.native.library import runnable_levels

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not runnable_levels(), reason="the kernels were not built here, or none runs here")
def test_every_kind_is_measured_on_both_sides():
    options = ["--rows", "1", "3", "--vocab-size", "500", "--rounds", "2", "--threads", "1"]
    command = [sys.executable, "-m", "benchmarks.sampling", *options]
    lines = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    *each, summary = map(json.loads, lines)
    assert {(line["kind"], line["rows"]) for line in each} == {(line["kind"], rows) for line in each for rows in (1, 3)}
    assert {"greedy", "all", "beams"} <= {line["kind"] for line in each}
    for line in each:
        figures = summary[f"{line['kind']}, {line['rows']} rows"]
        assert figures["torch_over_native"] > 0
        assert all(figures[f"{side}_best_ms"] <= figures[f"{side}_ms"] for side in ("native", "torch"))
