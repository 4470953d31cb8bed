"""Memory in huge pages."""

import gc
import random
import threading
from pathlib import Path

import numpy as np
import pytest

from executor.native import memory
from executor.native.memory import HUGE_PAGE, allocate, huge_page_bytes, populate, populate_in_background

_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.parametrize("nbytes", [0, 1, 4095, HUGE_PAGE, 3 * HUGE_PAGE + 17])
def test_memory_is_zero_aligned_and_of_the_size_asked_for(nbytes: int) -> None:
    array = allocate(nbytes)
    assert array.shape == (nbytes,)
    assert array.dtype == np.uint8
    assert array.ctypes.data % HUGE_PAGE == 0 or nbytes == 0
    assert not array.any()
    array[:] = 7
    assert (array == 7).all()


def test_memory_lives_as_long_as_the_last_view_of_it() -> None:
    size = 64 * HUGE_PAGE
    before = _mapped_bytes()
    view = allocate(size)[HUGE_PAGE:].view(np.float32).reshape(-1, 16)[3]
    gc.collect()
    view[:] = 1.5
    assert view.sum() == 24
    assert _mapped_bytes() - before >= size
    del view
    gc.collect()
    assert _mapped_bytes() - before < size


def test_so_much_memory_that_there_is_none_is_an_error_of_its_own() -> None:
    with pytest.raises(MemoryError):
        allocate(1 << 50)  # more than there are addresses
    with pytest.raises(ValueError, match="negative"):
        allocate(-1)


def test_populated_memory_keeps_what_it_held_while_others_write_into_it() -> None:
    seed = random.randrange(1 << 32)
    generator = np.random.default_rng(seed)
    array = allocate(16 * HUGE_PAGE + 12345)
    pieces = [array[: 7 * HUGE_PAGE + 99], array[7 * HUGE_PAGE + 99 :]]
    expected = np.zeros_like(array)
    finished = threading.Event()
    results: list[bool] = []

    def done(populated: bool) -> None:
        results.append(populated)
        finished.set()

    populate_in_background(pieces, done)
    while not finished.is_set():
        place = generator.integers(array.size, size=64)
        array[place] = expected[place] = generator.integers(1, 256)
    assert np.array_equal(array, expected), f"seed {seed}"
    if results == [True]:
        assert _resident_bytes(array) >= array.nbytes


def test_an_older_system_says_that_it_cannot_populate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_MADV_POPULATE_WRITE", 9999)  # unknown to any system
    array = allocate(HUGE_PAGE)
    array[5] = 5
    assert not populate([array])
    assert array[5] == 5


def test_huge_pages_are_counted() -> None:
    array = allocate(8 * HUGE_PAGE)
    assert huge_page_bytes(array) <= array.nbytes
    array[:] = 1
    granted = huge_page_bytes(array)
    assert granted % HUGE_PAGE == 0
    if not _SETTING.exists() or "[never]" in _SETTING.read_text():
        assert granted == 0


def _mapped_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * 4096


def _resident_bytes(array: memory.Bytes) -> int:
    """Resident bytes of the mappings that an array lies in."""
    first, last = array.ctypes.data, array.ctypes.data + array.nbytes
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head and not head.endswith(":"):
            start, end = (int(border, 16) for border in head.split("-"))
            inside = start < last and first < end
        elif inside and head == "Rss:":
            total += int(line.split()[1]) << 10
    return total
