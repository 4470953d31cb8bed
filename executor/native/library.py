"""Loads the kernels that fit this machine."""

from __future__ import annotations

import ctypes
import weakref
from pathlib import Path

from executor.native.build import OUTPUT, levels, library_name


class LibraryMissing(Exception):
    """The kernels were not built here, or none of them runs here."""


class Library:
    """The functions of one level, by name; each module that calls some declares their arguments with `function`.

    Attributes:
        level: of CPU features that it is compiled for.
    """

    def __init__(self, path: Path, level: str) -> None:
        self.level = level
        # Calls release the interpreter lock.
        self._functions = ctypes.CDLL(str(path))

    def function(self, name: str, result: type | None, *arguments: type) -> ctypes._NamedFuncPointer:
        """The exported function `name` with its types declared."""
        function = self._functions[name]
        function.restype = result
        function.argtypes = list(arguments)
        return function


class Crew:
    """Threads that run kernels together, the calling one included; they sleep between calls.

    Attributes:
        handle: what the library's functions take.
    """

    def __init__(self, library: Library, threads: int) -> None:
        if threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        self.threads = threads
        self.handle: int = library.function("octavo_crew_new", ctypes.c_void_p, ctypes.c_int32)(threads)
        free = library.function("octavo_crew_free", None, ctypes.c_void_p)
        weakref.finalize(self, free, self.handle)


def load_library(level: str | None = None, folder: Path = OUTPUT) -> Library:
    """The fastest kernels that run here, or those of `level`.

    Kernels whose products are wrong here are passed over: of instructions that a machine says it has, not all may work
    in every virtual machine.

    Raises:
        LibraryMissing: there are none.
    """
    for candidate in runnable_levels(folder):
        if level in (None, candidate):
            library = Library(folder / library_name(candidate), candidate)
            if library.function("octavo_products_are_right", ctypes.c_int32)():
                return library
    raise LibraryMissing(f"no kernels{f' of level {level}' if level else ''} that run on this machine in {folder}")


def runnable_levels(folder: Path = OUTPUT) -> list[str]:
    """Levels that were built and run here, the fastest first."""
    try:
        probe = Library(folder / library_name("probe"), "probe")
    except OSError:
        return []
    runs_here = probe.function("octavo_runs_here", ctypes.c_int32, ctypes.c_char_p)
    return [level for level in levels() if (folder / library_name(level)).exists() and runs_here(level.encode())]
