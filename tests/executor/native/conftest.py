"""The kernels of every level that runs here."""

import numpy as np
import pytest

from executor.native import Library, load_library
from executor.native.build import SOURCES, NoCompiler, build, compile_variant, levels
from executor.native.library import runnable_levels


@pytest.fixture(scope="session")
def runnable() -> list[str]:
    """Levels that run here; compiled if they are not."""
    try:
        build()
    except NoCompiler as reason:
        pytest.skip(str(reason))
    return runnable_levels()


@pytest.fixture(params=levels())
def library(request: pytest.FixtureRequest, runnable: list[str]) -> Library:
    """Of each level."""
    if request.param not in runnable:
        pytest.skip(f"no {request.param} here")
    return load_library(request.param)


@pytest.fixture(scope="session")
def emulated_amx(runnable: list[str], tmp_path_factory: pytest.TempPathFactory) -> Library:
    """Products on tile registers as the level amx has them, with registers in memory."""
    level = next(level for level in runnable if level != "amx")
    names = ("team.cpp", "api_crew.cpp", "api_linear.cpp", "epilogue.cpp", "linear*.cpp", "quantized*.cpp")
    sources = sorted({source for name in names for source in SOURCES.glob(name)})
    path = tmp_path_factory.mktemp("emulated") / "liboctavo.so"
    compile_variant(path, level, sources, "-DOCTAVO_EMULATE_AMX", "-O1")
    return Library(path, "emulated amx")


@pytest.fixture
def rng() -> np.random.Generator:
    """Fresh numbers; the seed is printed when a test fails."""
    seed = np.random.SeedSequence().entropy
    print(f"seed {seed}")
    return np.random.default_rng(seed)
