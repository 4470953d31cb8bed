"""The benchmark of the products measures every shape on both sides."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from executor.native.library import runnable_levels

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not runnable_levels(), reason="the kernels were not built here, or none runs here")
@pytest.mark.parametrize("kind", ["bfloat16", "int4"])
def test_every_shape_is_measured_on_every_side(kind: str) -> None:
    options = ["--shapes", "qkv", "gate and up", "--rows", "1", "17", "--megabytes", "1", "--rounds", "2"]
    command = [sys.executable, "-m", "benchmarks.linear", *options, "--kind", kind, "--threads", "1"]
    lines = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    *each, summary = map(json.loads, lines)
    cases = {(shape, rows) for shape in ("qkv", "gate and up") for rows in (1, 17)}
    assert {(line["shape"], line["rows"]) for line in each} == cases
    for line in each:
        figures = summary[f"{line['shape']}, {line['rows']} rows"]
        assert line["machine"]["read_gb_s_1"] > 0
        assert figures["torch_over_octavo"] > 0
        for side in ("octavo", "torch"):
            assert figures[side]["gflops"] == pytest.approx(line[side]["gflops"])
            assert figures[side]["gb_s"] > 0
    bits = 16 if kind == "bfloat16" else 5
    one = each[0]["octavo"]
    assert one["gb_s"] * 1e9 == pytest.approx(960 * 576 * bits / 8 / (one["ms"] / 1e3), rel=0.1, abs=1e8)
