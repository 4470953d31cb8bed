"""Tests of kernels under Triton's interpreter, on a CPU.

Triton looks for TRITON_INTERPRET=1 when it meets @triton.jit, and a process that has it can compile nothing. So pytest
computes this folder's tests in a second process that has it, and shows their reports as if they were its own: selecting
tests, -x, --tb, time limits and the closing line are as ever, in one test file as in all of `make test`.
Write tests here as anywhere, on CPU tensors. For -s and --pdb, be that process: TRITON_INTERPRET=1 python -m pytest ...

Both processes import the test modules, and a test's parameters must be the same in both.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.executor.triton.interpreted import InterpretedTests

_HERE = Path(__file__).parent


class WithoutTriton(pytest.Module):
    """A test module that can't be imported."""

    def collect(self) -> list[pytest.Item]:
        raise pytest.skip.Exception("Triton is not installed", allow_module_level=True)


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        config.pluginmanager.register(InterpretedTests(_HERE))


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    if importlib.util.find_spec("triton") is None:
        return WithoutTriton.from_parent(parent, path=module_path)
    return None


@pytest.fixture
def seed() -> int:
    """A fresh one, also of torch; it is printed when a test fails."""
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    torch.manual_seed(seed)
    return seed


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """Fresh numbers, of numpy and of torch; the seed is printed when a test fails."""
    return np.random.default_rng(seed)
