"""A crew's threads share the items of each phase, and none begins before the phase before it is over."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from executor.native import Library
from executor.native.build import SOURCES, compile_variant


@pytest.fixture(scope="module")
def check(runnable: list[str], tmp_path_factory: pytest.TempPathFactory) -> Library:
    path = tmp_path_factory.mktemp("crew") / "libcrew.so"
    sources = [Path(__file__).with_name("crew_check.cpp"), SOURCES / "team.cpp"]
    compile_variant(path, runnable[0], sources, f"-I{SOURCES}", "-O1")
    return Library(path, runnable[0])


# More threads than cores: some are without one in the middle of a phase.
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_phases_follow_one_another(check: Library, rng: np.random.Generator, threads: int) -> None:
    errors = check.function("crew_errors", ctypes.c_int32, ctypes.c_int32, ctypes.c_int32, ctypes.c_uint32)
    assert errors(threads, 2000, int(rng.integers(2**32))) == 0
