"""How a command fails: one line for a person, an exit code for a program."""

from collections.abc import Iterator
from contextlib import contextmanager

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
    """Turns a failed call to a server into the command's error.

    Raises:
        CommandError: The server refused (exit code 1) or cannot be reached (2).
    """
    from octavo.client import OctavoError

    try:
        yield
    except OctavoError as error:
        if not error.from_server:
            raise CommandError(f"cannot reach {address}: {error.message}", UNUSABLE) from error
        raise CommandError(str(error), REFUSED) from error
