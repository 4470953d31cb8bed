"""Messages through a pipe between two processes of one executor."""

from __future__ import annotations

import struct
from typing import IO

_LENGTH = struct.Struct("<Q")


def send(pipe: IO[bytes], message: bytes) -> None:
    """Returns when the message is in the pipe."""
    pipe.write(_LENGTH.pack(len(message)) + message)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes | None:
    """The next message; None where the pipe has ended."""
    header = pipe.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(header)
    message = pipe.read(length)
    return message if len(message) == length else None
