"""The process of a rank that is not the first: `python -m services.executor.rank`, started by `RankProcesses`."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from queue import SimpleQueue
from typing import BinaryIO, NoReturn

from services.config import ConfigError
from services.executor.pipe import receive
from services.process import BROKEN_EXIT_CODE, UNUSABLE_EXIT_CODE

log = logging.getLogger(__name__)

# What breaks here may have broken because another rank is gone. Its end is the one to tell of, so it has this long.
_FIRST_WORD_SECONDS = 1.0


def main() -> NoReturn:
    """Runs the steps that the first rank tells of, until that one ends or says so."""
    # The first rank gets the same signals, and finishes its steps before it ends this process.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # What libraries print is not for the first rank.
    words = os.dup(1)
    os.dup2(2, 1)
    messages = _listen(sys.stdin.buffer)
    try:
        # Takes seconds, in which this process can already be ended.
        from services.executor.following import follow

        follow(messages)
    except ConfigError as error:
        _leave(words, str(error), UNUSABLE_EXIT_CODE)
    except Exception as error:
        log.critical("the rank breaks off", exc_info=True)
        time.sleep(_FIRST_WORD_SECONDS)
        _leave(words, f"{type(error).__name__}: {error}", BROKEN_EXIT_CODE)


def _listen(pipe: BinaryIO) -> SimpleQueue[bytes]:
    """What comes through the pipe. When it ends, so does this process, whatever it is doing or waiting for."""
    messages: SimpleQueue[bytes] = SimpleQueue()

    def read() -> None:
        while (message := receive(pipe)) is not None:
            messages.put(message)
        os._exit(0)

    threading.Thread(target=read, name="listen", daemon=True).start()
    return messages


def _leave(words: int, reason: str, exit_code: int) -> NoReturn:
    """Ends the process although others may wait for it; the first rank reads the reason."""
    os.write(words, reason.encode())
    os._exit(exit_code)


if __name__ == "__main__":
    main()
