"""Long columns of numbers travel packed: little-endian int32 or int64, one after the other."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable


def pack_int32(values: Iterable[int]) -> bytes:
    return _pack("i", values)


def pack_int64(values: Iterable[int]) -> bytes:
    return _pack("q", values)


def unpack_int32(data: bytes) -> list[int]:
    """Raises ValueError where the length is not a multiple of 4."""
    return _unpack("i", data)


def unpack_int64(data: bytes) -> list[int]:
    """Raises ValueError where the length is not a multiple of 8."""
    return _unpack("q", data)


def pack_tuples(rows: Iterable[tuple[int, ...]]) -> bytes:
    """Tuples of one width, as int32."""
    return pack_int32(value for row in rows for value in row)


def unpack_tuples(data: bytes, width: int) -> list[tuple[int, ...]]:
    """Raises ValueError where the length is not a multiple of 4 * width."""
    values = unpack_int32(data)
    if len(values) % width:
        raise ValueError(f"{len(values)} numbers do not make tuples of {width}")
    return list(zip(*(values[i::width] for i in range(width)), strict=True))


def _pack(typecode: str, values: Iterable[int]) -> bytes:
    column = array(typecode, values)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def _unpack(typecode: str, data: bytes) -> list[int]:
    column = array(typecode)
    column.frombytes(data)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tolist()
