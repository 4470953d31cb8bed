"""Memory in huge pages, for what the kernels read in each step: weights, keys and values.

With pages of 4 KiB an access at random in a few hundred megabytes waits for the page table as well as for the memory,
and the first touch of each page is a trip to the operating system. So such memory is taken in pages of 2 MiB where the
system grants them (Linux: transparent huge pages, `madvise` or `always`), and touched before it is needed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import re
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

HUGE_PAGE = 2 << 20
_MADV_POPULATE_WRITE = 23  # Linux 5.14; not among the constants of Python's mmap


def allocate(nbytes: int) -> Bytes:
    """Zeros, aligned to a huge page, that take no memory before they are touched; freed with the last array on them.

    Raises:
        MemoryError: There is no room for so many.
    """
    if nbytes < 0:
        raise ValueError(f"nbytes must not be negative: {nbytes}")
    if sys.platform != "linux":
        return np.zeros(nbytes, np.uint8)
    # Private: a shared anonymous mapping would be of the kind that tmpfs has, whose huge pages are off by default.
    length = -(-nbytes // HUGE_PAGE) * HUGE_PAGE + HUGE_PAGE
    try:
        mapping = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise MemoryError(f"{nbytes} bytes") from error
        raise
    with contextlib.suppress(OSError):  # a system without huge pages
        mapping.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(mapping, np.uint8)
    start = -_address(whole) % HUGE_PAGE
    return whole[start : start + nbytes]


def populate(pieces: Sequence[Bytes]) -> bool:
    """Touches all pages without changing what they hold, so it may run while others already use them.

    Args:
        pieces: In turns a huge page of each, from the start: of layers that lie one after the other, what all of them
            need first is there first.

    Returns:
        Whether it did: a system older than Linux 5.14 cannot, nor one that is short of memory. Pages are then touched
        when they are first used.
    """
    for start in range(0, max((piece.nbytes for piece in pieces), default=0), HUGE_PAGE):
        for piece in pieces:
            # In small steps: while one runs, no other thread can map memory.
            if start < piece.nbytes and not _populate(piece[start : start + HUGE_PAGE]):
                return False
    return True


def populate_in_background(pieces: Sequence[Bytes], done: Callable[[bool], None]) -> threading.Thread:
    """The same on a thread of its own, which does not hold up the end of the process.

    Args:
        done: Gets the result, on that thread.
    """
    thread = threading.Thread(target=lambda: done(populate(pieces)), name="populate", daemon=True)
    thread.start()
    return thread


def huge_page_bytes(array: Bytes) -> int:
    """How many of an array's bytes lie in huge pages now; of touched memory, 0 means that the system grants none.

    Exact where nothing else lies in the same mapping, else at most too high.
    """
    try:
        mappings = Path("/proc/self/smaps").read_text("ascii", "replace")
    except OSError:
        return 0
    first, last = _address(array), _address(array) + array.nbytes
    total = 0
    inside = False
    for line in mappings.splitlines():
        if borders := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(borders[1], 16) < last and first < int(borders[2], 16)
        elif inside and line.startswith("AnonHugePages:"):
            total += int(line.split()[1]) << 10
    return min(total, array.nbytes)


def _address(array: Bytes) -> int:
    return int(array.__array_interface__["data"][0])


def _populate(piece: Bytes) -> bool:
    """Touches one piece, as whole pages."""
    if sys.platform != "linux":
        return False
    first = _address(piece) // mmap.PAGESIZE * mmap.PAGESIZE
    return _madvise(first, _address(piece) + piece.nbytes - first, _MADV_POPULATE_WRITE) == 0


def _libc_madvise() -> Callable[[int, int, int], int]:
    """Unlike Python's own, it lets other threads run meanwhile."""
    function = ctypes.CDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    function.restype = ctypes.c_int
    return function


_madvise = _libc_madvise()
