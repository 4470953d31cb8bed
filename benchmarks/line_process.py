"""A child process that is asked in JSON lines on its standard input and answers in JSON lines on its output."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

_STOP_SECONDS = 60.0
_LAST_LINES = 20


class ChildFailed(Exception):
    """A child ended, or said something else than JSON."""


class LineProcess:
    """Starts at once. What the child says on its standard error goes to a file, or to ours where there is none.

    Attributes:
        pid: of the process.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path | None = None) -> None:
        self._command = command
        self._log = log
        errors: IO[bytes] | None = None if log is None else log.open("wb")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=dict(environment), text=True
        )
        if errors is not None:
            errors.close()
        self.pid = self._process.pid

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Sends one line and waits for the answer.

        Raises:
            ChildFailed: there is none.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure("ended") from None
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """Waits for one line.

        Raises:
            ChildFailed: there is none, or it is no JSON object.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failure("ended")
        try:
            answer = json.loads(line)
        except json.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict):
            raise self._failure(f"said {line!r}")
        return answer

    def stop(self) -> None:
        """Closes its standard input, which ends it, and kills it where that does not."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _failure(self, what: str) -> ChildFailed:
        if self._log is not None:
            with self._log.open(errors="replace") as lines:
                sys.stderr.writelines(deque(lines, _LAST_LINES))
        return ChildFailed(f"{' '.join(self._command[:3])} {what}")
