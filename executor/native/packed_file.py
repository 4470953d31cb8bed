"""Keeps converted weights in a file, so that the next start reads them instead of converting again.

The file holds named buffers: a prefix of 64 bytes, the buffers, each at a multiple of 64 bytes, and at the end what
they are called, what they were made from, and a sum of every chunk of 4 MiB. It is written under another name,
synchronised and renamed, so there is a whole one or none. What it holds is read into one piece of memory in huge pages,
from which a product reads its weights faster than from a mapping of the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from executor.native.memory import Bytes, allocate
from executor.progress import Progress, tell_nobody

_log = logging.getLogger(__name__)

Key = Mapping[str, Any]
"""What a file was made from and how, as JSON; a file with another key is stale."""

_SUFFIX = ".packed"
_ALIGNMENT = 64
_CHUNK_BYTES = 4 << 20
_READERS = 2
_SEGMENT_BYTES = 256 << 20
# Magic number, then place, size and CRC-32 of the table at the end.
_PREFIX = struct.Struct("<8sQQI")
_MAGIC = b"octavo\x00\x01"
_BUFFERS_START = 64


class Writer(Protocol):
    """Takes the buffers, one by one."""

    def add(self, name: str, data: NDArray[Any]) -> None:
        """Keeps a copy of an array's bytes, in C order.

        Raises:
            ValueError: there is one of this name.
        """


def source_key(files: Iterable[Path], **how: str | int) -> Key:
    """A key that changes when one of the files does.

    Args:
        how: whatever else decides what the buffers hold: layout version, kind of quantisation.
    """
    sources = [(str(path.resolve()), status.st_size, status.st_mtime_ns) for path in files for status in (path.stat(),)]
    return {"files": sorted(sources), **how}


def packed_path(folder: Path, model: Path, form: str) -> Path:
    """Where the buffers of a model are kept, in one form, such as its kind of quantisation."""
    identity = hashlib.sha256(str(model.resolve()).encode()).hexdigest()[:12]
    return folder / f"{model.stem}-{form}-{identity}{_SUFFIX}"


def open_or_build(
    path: Path | None, key: Key, build: Callable[[Writer], None], on_progress: Progress = tell_nobody
) -> dict[str, Bytes]:
    """The buffers in memory, read from the file, or built where there is no file that is whole and has this key.

    Several processes may do so at once; one of them builds. Where the file cannot be written, the buffers are built in
    memory, and the log says so.

    Args:
        path: the file; nothing is kept where None.
        build: adds all buffers. It may be called twice: the disk may be full at the end of the first time.
        on_progress: told how many bytes have been read.

    Raises:
        whatever `build` raises; nothing is kept then.
    """
    if path is not None:
        try:
            return _read_or_write(path, key, build, on_progress)
        except _NotKept as reason:
            _log.warning("converted weights are not kept", extra={"path": str(path), "reason": str(reason)})
    memory = _MemoryWriter()
    build(memory)
    return memory.buffers


class _NotKept(Exception):
    """The file cannot be written."""


def _read_or_write(path: Path, key: Key, build: Callable[[Writer], None], on_progress: Progress) -> dict[str, Bytes]:
    if (found := _read(path, key, on_progress)) is not None:  # the folder may be read-only then
        return found
    with _locked(path):
        if (found := _read(path, key, on_progress)) is not None:  # another process was faster
            return found
        _write(path, key, build)
        _remove_orphans(path.parent)
        if (found := _read(path, key, on_progress)) is not None:
            return found
    raise _NotKept("it cannot be read back")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Only one process at a time; the system gives the lock up for one that dies."""
    with _wrapped():
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.with_suffix(".lock").open("w")
    with file:
        with _wrapped():
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _wrapped() -> Iterator[None]:
    """Tells errors of this file from those of the files that are converted."""
    try:
        yield
    except OSError as error:
        raise _NotKept(error.strerror or str(error)) from error


# Writing


def _write(path: Path, key: Key, build: Callable[[Writer], None]) -> None:
    partial = path.with_suffix(".partial")
    try:
        with _wrapped():
            file = partial.open("w+b", buffering=0)
        with file:
            writer = _FileWriter(file.fileno())
            build(writer)
            writer.finish(key)
        with _wrapped():
            partial.replace(path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _remove_orphans(folder: Path) -> None:
    """Removes what was made from files that are gone: the folder would keep every model that there ever was."""
    for path in folder.glob(f"*{_SUFFIX}"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            table = _read_table(file.fileno())
            if table is not None and not all(Path(source).exists() for source, *_ in table.key.get("files", ())):
                path.unlink()
                path.with_suffix(".lock").unlink(missing_ok=True)


class _FileWriter:
    def __init__(self, file: int) -> None:
        self._file = file
        self._places: dict[str, tuple[int, int]] = {}
        self._size = 0

    def add(self, name: str, data: NDArray[Any]) -> None:
        _check_new(name, self._places)
        self._places[name] = (self._size, data.nbytes)
        self._write(_bytes_of(data).data, _BUFFERS_START + self._size)
        self._size += _aligned(data.nbytes)

    def finish(self, key: Key) -> None:
        end = _BUFFERS_START + self._size
        with _wrapped():
            os.ftruncate(self._file, end)  # the last one's bytes may end before
            sums = [_sum(chunk) for chunk in self._chunks()]
        table = json.dumps({"key": key, "buffers": self._places, "sums": sums}).encode()
        self._write(memoryview(table), end)
        self._write(memoryview(_PREFIX.pack(_MAGIC, end, len(table), zlib.crc32(table))), 0)
        with _wrapped():
            os.fsync(self._file)

    def _write(self, data: memoryview, offset: int) -> None:
        with _wrapped():
            while data:
                count = os.pwrite(self._file, data, offset)
                data, offset = data[count:], offset + count

    def _chunks(self) -> Iterator[Bytes]:
        for start in range(0, self._size, _CHUNK_BYTES):
            chunk = os.pread(self._file, min(_CHUNK_BYTES, self._size - start), _BUFFERS_START + start)
            yield np.frombuffer(chunk, np.uint8)


class _MemoryWriter:
    """Lays the buffers one after the other into large pieces of memory."""

    def __init__(self) -> None:
        self.buffers: dict[str, Bytes] = {}
        self._room = allocate(0)

    def add(self, name: str, data: NDArray[Any]) -> None:
        _check_new(name, self.buffers)
        size = _aligned(data.nbytes)
        if size > self._room.nbytes:
            self._room = allocate(max(size, _SEGMENT_BYTES))
        self.buffers[name] = self._room[: data.nbytes]
        self._room = self._room[size:]
        self.buffers[name][:] = _bytes_of(data)


def _check_new(name: str, known: Mapping[str, Any]) -> None:
    if name in known:
        raise ValueError(f"there are two buffers of the name {name!r}")


def _bytes_of(data: NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


# Reading


@dataclass(frozen=True, slots=True)
class _Table:
    """The end of a file.

    Attributes:
        size: bytes of all buffers together, from the first one's start.
        places: start and size of each buffer, from there.
        sums: of each chunk.
    """

    size: int
    key: Key
    places: Mapping[str, tuple[int, int]]
    sums: list[int]


def _read(path: Path, key: Key, on_progress: Progress) -> dict[str, Bytes] | None:
    """What a file holds; None where there is none, or not one that is whole and has this key."""
    try:
        with path.open("rb", buffering=0) as file:
            table = _read_table(file.fileno())
            if table is None or table.key != json.loads(json.dumps(key)):
                return None
            memory = allocate(table.size)
            if not _read_chunks(file.fileno(), memory, table.sums, on_progress):
                return None
    except OSError:
        return None
    return {name: memory[start : start + size] for name, (start, size) in table.places.items()}


def _read_table(file: int) -> _Table | None:
    prefix = os.pread(file, _PREFIX.size, 0)
    if len(prefix) < _PREFIX.size:
        return None
    magic, start, size, checksum = _PREFIX.unpack(prefix)
    if magic != _MAGIC or os.fstat(file).st_size != start + size:
        return None
    table = os.pread(file, size, start)
    if zlib.crc32(table) != checksum:
        return None
    contents = json.loads(table)
    return _Table(start - _BUFFERS_START, contents["key"], contents["buffers"], contents["sums"])


def _read_chunks(file: int, memory: Bytes, sums: list[int], on_progress: Progress) -> bool:
    """Fills the memory; returns whether it now holds what was written."""

    def read(index: int) -> bool:
        start = index * _CHUNK_BYTES
        chunk = memory[start : start + _CHUNK_BYTES]
        done = 0
        while done < chunk.nbytes:
            count = os.preadv(file, [chunk[done:].data], _BUFFERS_START + start + done)
            if count == 0:
                return False
            done += count
        return _sum(chunk) == sums[index]

    with ThreadPoolExecutor(_READERS) as readers:
        for index, whole in enumerate(readers.map(read, range(len(sums)))):
            if not whole:
                readers.shutdown(wait=True, cancel_futures=True)
                return False
            on_progress("Reading converted weights", min((index + 1) * _CHUNK_BYTES, memory.nbytes), memory.nbytes)
    return True


def _sum(chunk: Bytes) -> int:
    """Sum of a chunk's 64-bit words, modulo 2^64: it finds what a disk does to a file, at the speed of memory."""
    return int(chunk.view(np.uint64).sum(dtype=np.uint64))
