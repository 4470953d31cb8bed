"""Clients whose pins conflict with ours: they live in an environment of their own, which `make clients` makes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def clients_python(module: str) -> Path:
    """The Python of that environment. The test is skipped where it lacks a module."""
    folder = Path(os.environ.get("OCTAVO_CLIENTS_VENV", ROOT / ".venv-clients"))
    python = folder / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{folder} is not there: make clients")
    if subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode:
        pytest.skip(f"{folder} has no {module}: make clients")
    return python
