"""Tests that a second pytest runs are reported as if the first one ran them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

_CONFTEST = """
import os
from pathlib import Path
from tests.executor.triton.interpreted import InterpretedTests

def pytest_configure(config):
    if os.environ.get("TRITON_INTERPRET") != "1":
        config.pluginmanager.register(InterpretedTests(Path(__file__).parent / "interpreted"))
"""
_HERE = """
import os

def test_here():
    assert "TRITON_INTERPRET" not in os.environ
"""
_INTERPRETED = """
import os
import pytest

def test_good():
    assert os.environ["TRITON_INTERPRET"] == "1"

def test_bad():
    print("seed 17")
    assert [1, 2] == [1, 3]

def test_skipped():
    pytest.skip("no such GPU")

@pytest.fixture
def broken():
    yield
    raise ValueError("torn down")

def test_torn_down(broken):
    pass

def test_the_process_dies():
    os.abort()

@pytest.mark.parametrize("number", [1, 2])
def test_after_it(number):
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "interpreted").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 60\n")
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "test_here.py").write_text(_HERE)
    (tmp_path / "interpreted" / "test_kernels.py").write_text(_INTERPRETED)
    return tmp_path


def _pytest(folder: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100).stdout


def test_all_outcomes_are_shown_in_full(folder):
    output = _pytest(folder)
    assert re.search(r"2 failed, 5 passed, 1 skipped, 1 error in [0-9.]+s", output.splitlines()[-1])
    assert "assert [1, 2] == [1, 3]" in output
    assert "seed 17" in output
    assert "no such GPU" in output
    assert "ValueError: torn down" in output
    assert "ended before this test did" in output
    assert "Fatal Python error: Aborted" in output
    assert "exit status -6" in output


def test_some_can_be_chosen_and_the_first_failure_can_end_it(folder):
    last = _pytest(folder, "-x", "-k", "good or bad or torn", "interpreted/test_kernels.py").splitlines()[-1]
    assert re.search(r"1 failed, 1 passed, 4 deselected in", last)
