"""The CPU's own kernels, in C++ behind a plain C interface."""

from executor.native.library import Crew, Library, LibraryMissing, load_library

__all__ = ["Crew", "Library", "LibraryMissing", "load_library"]
