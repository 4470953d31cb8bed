"""How a command fails: one line for a person, an exit code for a program."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

REFUSED = 1
UNUSABLE = 2
INTERRUPTED = 130


class CommandError(Exception):
    """Ends the command with one line on stderr.

    Attributes:
        exit_code: 1 where a server refused, 2 where the command cannot work as it was called.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextmanager
def talking_to(address: str) -> Iterator[None]:
    """Turns a failed call to a server into the command's error, and has Ctrl-C leave at once.

    Raises:
        CommandError: The server refused (exit code 1) or cannot be reached (2).
    """
    from octavo.client import OctavoError

    try:
        with _leaving_at_ctrl_c():
            yield
    except OctavoError as error:
        if not error.from_server:
            raise CommandError(f"cannot reach {address}: {error.message}", UNUSABLE) from error
        raise CommandError(str(error), REFUSED) from error


@contextmanager
def _leaving_at_ctrl_c() -> Iterator[None]:
    """Ends the process where Ctrl-C would raise KeyboardInterrupt.

    Raised in the middle of gRPC's work, that can leave one of its locks held and the process waiting for it for ever.
    The server sees the connection end, and ends the request.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        if sys.stderr.isatty():
            os.write(sys.stderr.fileno(), b"\n")
        os._exit(INTERRUPTED)

    before = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
