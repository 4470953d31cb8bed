"""Long columns of numbers travel packed: little-endian, one after the other.

A step packs and unpacks a handful of columns with an entry for each running sequence, so these are made to be fast:
`struct` packs and `array` unpacks, each in half the time that the other needs. Most columns of most steps are empty.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TypeVar

T = TypeVar("T", int, float)


def pack_int32(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def pack_int64(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def pack_float32(values: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def unpack_int32(data: bytes) -> list[int]:
    """Raises ValueError where the length is not a multiple of 4."""
    return _unpack(array("i", data)) if data else []


def unpack_int64(data: bytes) -> list[int]:
    """Raises ValueError where the length is not a multiple of 8."""
    return _unpack(array("q", data)) if data else []


def unpack_float32(data: bytes) -> list[float]:
    """Raises ValueError where the length is not a multiple of 4."""
    return _unpack(array("f", data)) if data else []


def pack_tuples(rows: Iterable[tuple[int, ...]]) -> bytes:
    """Tuples of one width, as int32."""
    return pack_int32(list(chain.from_iterable(rows)))


def pack_int64_tuples(rows: Iterable[tuple[int, ...]]) -> bytes:
    """Tuples of one width, as int64."""
    return pack_int64(list(chain.from_iterable(rows)))


def unpack_tuples(data: bytes, width: int) -> list[tuple[int, ...]]:
    """Raises ValueError where the length is not a multiple of 4 * width."""
    return _tuples(unpack_int32(data), width) if data else []


def unpack_int64_tuples(data: bytes, width: int) -> list[tuple[int, ...]]:
    """Raises ValueError where the length is not a multiple of 8 * width."""
    return _tuples(unpack_int64(data), width) if data else []


def _unpack(column: array[T]) -> list[T]:
    if sys.byteorder == "big":
        column.byteswap()
    return column.tolist()


def _tuples(values: list[int], width: int) -> list[tuple[int, ...]]:
    if len(values) % width:
        raise ValueError(f"{len(values)} numbers do not make tuples of {width}")
    return list(zip(*(values[i::width] for i in range(width)), strict=True))
