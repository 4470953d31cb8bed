"""Reads the metadata at the head of a GGUF file, and none of its tensors.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. The `gguf` package's
reader makes one numpy view for each array element, which takes seconds for a vocabulary; this takes a tenth of one.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from gateway.errors import TokenizerError

Value = bool | int | float | str | list["Value"]

_MAGIC = b"GGUF"
_STRING = 8
_ARRAY = 9
# Type number -> struct format.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def read_gguf_metadata(path: Path) -> dict[str, Value]:
    """All key-value pairs of a GGUF file.

    Raises:
        TokenizerError: Not a GGUF file, a version other than 2 and 3, or one that ends too early.
    """
    with path.open("rb") as file:
        if file.read(4) != _MAGIC:
            raise TokenizerError(f"{path} is not a GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                return _Cursor(content, 4).metadata()
            except (struct.error, IndexError, KeyError, UnicodeDecodeError, TokenizerError) as error:
                raise TokenizerError(f"{path} is not a readable GGUF file: {error}") from error


class _Cursor:
    """Walks through the file's bytes."""

    def __init__(self, content: mmap.mmap, offset: int) -> None:
        self._content = content
        self._offset = offset

    def metadata(self) -> dict[str, Value]:
        (version,) = self._unpack("I")
        if version not in (2, 3):
            raise TokenizerError(f"version {version} is not supported, only little-endian 2 and 3 are")
        _, pairs = self._unpack("QQ")
        metadata: dict[str, Value] = {}
        for _ in range(pairs):
            key = self._strings(1)[0]
            (kind,) = self._unpack("I")
            metadata[key] = self._value(kind)
        return metadata

    def _value(self, kind: int) -> Value:
        if kind == _STRING:
            return self._strings(1)[0]
        if kind != _ARRAY:
            value: Value = self._unpack(_SCALARS[kind])[0]
            return value
        element, count = self._unpack("IQ")
        if element == _STRING:
            return list(self._strings(count))
        if element == _ARRAY:
            return [self._value(_ARRAY) for _ in range(count)]
        return list(self._unpack(f"{count}{_SCALARS[element]}"))

    def _unpack(self, layout: str) -> tuple[int, ...]:
        layout = "<" + layout
        values = struct.unpack_from(layout, self._content, self._offset)
        self._offset += struct.calcsize(layout)
        return values

    def _strings(self, count: int) -> list[str]:
        content, offset = self._content, self._offset
        end_of_file = len(content)
        strings = []
        for _ in range(count):
            start = offset + 8
            offset = start + int.from_bytes(content[offset:start], "little")
            if offset > end_of_file:
                raise IndexError("a string reaches past the end of the file")
            strings.append(content[start:offset].decode())
        self._offset = offset
        return strings
