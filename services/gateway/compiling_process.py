"""The gateway's side of the process that compiles guides (`services.gateway.guide_process`)."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from typing import Any

from gateway.tokenizer import Tokenizer
from services.child_process import environment_of


class ProcessDied(Exception):
    """The process has ended.

    Attributes:
        exit_code: Minus the signal's number where one ended it.
    """

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"exit code {exit_code}")
        self.exit_code = exit_code


class CompilingProcess:
    """A process that runs until it is told to end, or until a guide is too much for it.

    Not asyncio's: that forks, and gRPC's handlers for forks, which then run in the child, have killed it.
    """

    def __init__(self) -> None:
        command = [sys.executable, "-m", "services.gateway.guide_process"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment_of("gateway"))

    def prepare(self, tokenizer: Tokenizer) -> str | None:
        """Tells it of the model. Call it once, first.

        Returns:
            Why no guide can be followed; then it has ended.

        Raises:
            ProcessDied: It has.
        """
        eos_token_ids = [token for token in tokenizer.eos_token_ids if tokenizer.token(token) is not None]
        return self._ask([tokenizer.backend.to_str(), eos_token_ids])

    def refusal(self, grammar: str) -> str | None:
        """What is wrong with a grammar, if anything.

        Raises:
            ProcessDied: It was too much.
        """
        return self._ask(grammar)

    def _ask(self, question: Any) -> str | None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = b""
        with suppress(OSError):
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            raise ProcessDied(self.end())
        answer: str | None = json.loads(line)
        return answer

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """Ends it, whoever waits for its answer."""
        self._process.kill()

    def end(self) -> int:
        """Ends it if it has not ended, and returns its exit code."""
        self.kill()
        exit_code = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        return exit_code
