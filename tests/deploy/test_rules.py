"""Prometheus's configuration and rules, checked by Prometheus's own tool."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.deploy.metric_names import ROOT

PROMTOOL = shutil.which("promtool")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROMTOOL is None, reason="there is no promtool (Debian has it in the package prometheus)"),
]


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "deploy/prometheus/prometheus.yml"),
        ("check", "rules", "deploy/prometheus/recording.yml", "deploy/prometheus/alerts.yml"),
        ("test", "rules", "tests/deploy/rules_test.yml"),
    ],
    ids=lambda arguments: "-".join(arguments[:2]),
)
def test_promtool_finds_nothing_wrong(arguments: tuple[str, ...]) -> None:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
