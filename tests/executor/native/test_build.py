"""The package's own build: with a compiler its wheel brings kernels, without one it is still a wheel."""

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from executor.native import LibraryMissing, load_library
from executor.native.build import LEVELS, NoCompiler, build, levels, library_name
from executor.native.library import runnable_levels

ROOT = Path(__file__).parents[3]
_LIB = "executor/native/lib"

# `make test` has compiled the kernels; where it did not, that takes minutes.
pytestmark = pytest.mark.timeout(900)


def test_a_wheel_brings_the_kernels_and_fits_every_python(kernels: list[Path], project: Path, tmp_path: Path) -> None:
    wheel = _build_wheel(project, tmp_path)
    platform_tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name.endswith(f"-py3-none-{platform_tag}.whl")
    assert _members(wheel, _LIB) == {f"{_LIB}/{library.name}" for library in kernels}

    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    script = "import executor.native as native; print(native.load_library().level, native.__file__)"
    level, file = _python("-c", script, cwd=installed).stdout.split()
    assert Path(file).is_relative_to(installed)
    assert level == runnable_levels(kernels[0].parent)[0]


def test_without_a_compiler_the_build_says_so_once_and_gives_a_pure_wheel(project: Path, tmp_path: Path) -> None:
    (project / _LIB).mkdir(exist_ok=True)
    (project / _LIB / library_name("plain")).write_bytes(b"from an earlier build, perhaps of other sources")
    built = _python(
        "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist"), cwd=project, PATH="", CXX=""
    )
    (wheel,) = (tmp_path / "dist").iterdir()
    assert (built.stdout + built.stderr).count("kernels for CPUs are not compiled") == 1
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not _members(wheel, _LIB)
    assert "executor/native/library.py" in _members(wheel, "executor/native")


def test_the_source_distribution_has_what_the_build_needs(project: Path, tmp_path: Path) -> None:
    (project / _LIB).mkdir(exist_ok=True)
    (project / _LIB / library_name("plain")).write_bytes(b"from an earlier build")
    _python("-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path), cwd=project)
    (archive,) = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(archive, tmp_path / "unpacked")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert (unpacked / "hatch_build.py").is_file()
    assert not (unpacked / _LIB).exists()
    sources = {path.name for path in (ROOT / "executor/native/src").iterdir()}
    assert {path.name for path in (unpacked / "executor/native/src").iterdir()} == sources


def test_levels_that_run_here_were_built_and_end_with_the_one_that_always_runs(kernels: list[Path]) -> None:
    runnable = runnable_levels(kernels[0].parent)
    assert runnable == [level for level in levels() if level in runnable]
    assert {library_name(level) for level in runnable} <= {library.name for library in kernels}
    assert runnable[-1] == "plain"
    assert [load_library(level).level for level in runnable] == runnable
    assert load_library().level == runnable[0]


def test_a_level_that_is_not_there_is_refused(tmp_path: Path, kernels: list[Path]) -> None:
    with pytest.raises(LibraryMissing, match="sse"):
        load_library("sse")
    with pytest.raises(LibraryMissing, match="no kernels"):
        load_library(folder=tmp_path)


def test_only_what_is_older_than_the_sources_is_compiled(
    kernels: list[Path], capfd: pytest.CaptureFixture[str]
) -> None:
    before = [library.stat().st_mtime_ns for library in kernels]
    assert build() == kernels
    assert [library.stat().st_mtime_ns for library in kernels] == before
    assert "compiling" not in capfd.readouterr().err


def test_a_level_that_is_newer_than_the_compiler_is_left_out(
    kernels: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {**LEVELS[platform.machine()], "future": ["-march=octavo-v9"]}
    monkeypatch.setitem(LEVELS, platform.machine(), flags)
    assert build() == kernels


@pytest.fixture
def kernels() -> list[Path]:
    """The libraries, compiled where they were not."""
    try:
        return build()
    except NoCompiler as reason:
        pytest.skip(str(reason))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what a wheel is built from, libraries included, so that nothing has to be compiled again."""
    copy = tmp_path / "project"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "hatch_build.py", ".gitignore"):
        shutil.copy2(ROOT / name, copy)
    for name in ("executor", "gateway", "kvmanager", "octavo", "services"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def _build_wheel(project: Path, tmp_path: Path) -> Path:
    _python("-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist"), cwd=project)
    (wheel,) = (tmp_path / "dist").iterdir()
    return wheel


def _members(wheel: Path, folder: str) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if name.startswith(f"{folder}/")}


def _python(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": "", **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done
