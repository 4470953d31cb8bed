"""The benchmark of guided decoding measures every guide, and steps with and without guided rows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.e2e.tiny_model import save_tiny_model

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_figure_is_there(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    options = ["--model", tmp_path, "--rows", "1", "3", "--steps", "3", "--rounds", "2", "--answers", "2"]
    command = [sys.executable, "-m", "benchmarks.guided", *options, "--quantize", "none", "--decoder", "torch"]
    lines = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    vocabulary, *each, summary = map(json.loads, lines)
    assert summary["vocabulary_ms"] == vocabulary["vocabulary_ms"] > 0
    guides = [line for line in each if "guide" in line]
    assert len(guides) == 7
    for line in guides:
        assert summary[line["guide"]]["mask_us"] <= line["p99_mask_us"]
        assert line["compile_ms"] > 0
    for rows in (1, 3):
        figures = summary[f"{rows} rows"]
        assert figures in each
        assert figures["guided_over_unguided"] > 0
        assert figures["mixed_tokens_per_s"] > 0
