"""Single keys from a terminal."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def pressed(tell: Callable[[str], None]) -> Iterator[None]:
    """Tells of each key that is pressed, for the time of a block; nothing where there is no keyboard."""
    try:
        import termios
        import tty
    except ImportError:  # on Windows
        yield
        return
    if not sys.stdin.isatty():
        yield
        return
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    loop = asyncio.get_running_loop()

    def read() -> None:
        data = os.read(file, 64)
        if not data:  # the terminal is gone
            loop.remove_reader(file)
        for key in data.decode("utf-8", "ignore"):
            tell(key)

    tty.setcbreak(file)
    loop.add_reader(file, read)
    try:
        yield
    finally:
        loop.remove_reader(file)
        termios.tcsetattr(file, termios.TCSADRAIN, before)
