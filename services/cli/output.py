"""Text that appears on stdout as it comes."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def streamed_text() -> Iterator[Callable[[str], None]]:
    """Gives a function that shows a piece of text at once. At the end, whatever ended it, the line is closed."""
    started = False

    def write(text: str) -> None:
        nonlocal started
        started = started or bool(text)
        sys.stdout.write(text)
        sys.stdout.flush()

    try:
        yield write
    finally:
        if started:
            write("\n")
