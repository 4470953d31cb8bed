"""Compiles the kernels: one shared library for each level of CPU features, and one that says which of them run here.

A library for each level, instead of one that holds all: no inline function of a higher level can end up, merged by the
linker, in a lower one. Needs g++ or clang++ and nothing else; this file imports nothing of the package, because the
package's own build runs it.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SOURCES = FOLDER / "src"
OUTPUT = FOLDER / "lib"

# From the fastest to the one that runs everywhere, with what the compiler may use beside the architecture's base.
LEVELS: dict[str, dict[str, list[str]]] = {
    "x86_64": {
        "amx": ["-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-mamx-int8"],
        "avx512": ["-march=x86-64-v4", "-mavx512vnni"],
        "avx2": ["-march=x86-64-v3"],
        "plain": [],
    },
    "aarch64": {"plain": []},
}
_FLAGS = ["-std=c++17", "-O3", "-fPIC", "-shared", "-Wl,-z,defs", "-pthread", "-fvisibility=hidden", "-fno-math-errno"]
_FLAGS += ["-fno-trapping-math", "-ffp-contract=fast", "-mprefer-vector-width=512", "-Wall", "-Wextra", "-Wno-psabi"]
NO_COMPILER_EXIT_CODE = 3
_COMPILERS = ("g++", "clang++", "c++")


class NoCompiler(Exception):
    """There is nothing here to compile with, or nothing to compile for."""


def levels() -> list[str]:
    """Levels of this architecture, the fastest first; empty where there is none."""
    return list(LEVELS.get(platform.machine(), {}))


def library_name(level: str) -> str:
    return f"liboctavo_{level}.so"


def build(output: Path = OUTPUT) -> list[Path]:
    """Compiles what is older than its sources.

    Returns:
        The libraries, all of them; none for levels that are newer than the compiler.

    Raises:
        NoCompiler: nothing was compiled.
        subprocess.CalledProcessError: the compiler refused the sources; it has said why.
    """
    if sys.platform != "linux" or not levels():
        raise NoCompiler(f"no kernels for {sys.platform} on {platform.machine()}")
    compiler = _compiler()
    output.mkdir(parents=True, exist_ok=True)
    kernels = sorted(source for source in SOURCES.glob("*.cpp") if source.name != "probe.cpp")
    known = {level: flags for level, flags in LEVELS[platform.machine()].items() if _knows(compiler, flags)}
    jobs = [(library_name(level), flags, kernels) for level, flags in known.items()]
    jobs.append((library_name("probe"), [], [SOURCES / "probe.cpp"]))
    newest = max(source.stat().st_mtime for source in [*SOURCES.iterdir(), Path(__file__)])
    stale = [job for job in jobs if not _is_newer(output / job[0], newest)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda job: _compile(compiler, output / job[0], job[1], job[2]), stale))
    for name, _, _ in stale:
        # As old as what it was made from: a source that was changed meanwhile makes it stale.
        os.utime(output / name, (newest, newest))
    return [output / name for name, _, _ in jobs]


def compile_variant(library: Path, level: str, sources: list[Path], *flags: str) -> None:
    """Compiles some sources for a level with more flags, for tests of what this machine has not.

    Raises:
        NoCompiler, subprocess.CalledProcessError: as `build`.
    """
    if level not in levels():
        raise NoCompiler(f"no level {level} on {platform.machine()}")
    _compile(_compiler(), library, [*LEVELS[platform.machine()][level], *flags], sources)


def _compiler() -> str:
    for name in (os.environ.get("CXX"), *_COMPILERS):
        if name and (found := shutil.which(name)):
            return found
    raise NoCompiler(f"none of {', '.join(_COMPILERS)} is installed")


def _knows(compiler: str, flags: list[str]) -> bool:
    check = [compiler, *flags, "-x", "c++", "-fsyntax-only", os.devnull]
    return subprocess.run(check, capture_output=True).returncode == 0


def _is_newer(library: Path, newest: float) -> bool:
    return library.exists() and library.stat().st_mtime >= newest


def _compile(compiler: str, library: Path, flags: list[str], sources: list[Path]) -> None:
    print(f"compiling {library.name}", file=sys.stderr, flush=True)
    # Written beside and moved into place: another process may have the old one loaded.
    partial = library.with_suffix(f".{os.getpid()}.partial")
    common = [flag for flag in _FLAGS if platform.machine() == "x86_64" or not flag.startswith("-mprefer")]
    try:
        subprocess.run([compiler, *common, *flags, "-o", str(partial), *map(str, sources)], check=True)
        partial.replace(library)
    finally:
        partial.unlink(missing_ok=True)


if __name__ == "__main__":
    try:
        build()
    except NoCompiler as reason:
        print(f"the kernels are not compiled: {reason}", file=sys.stderr)
        sys.exit(NO_COMPILER_EXIT_CODE)
