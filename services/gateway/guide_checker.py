"""Sees to it that guides which can't be followed are refused, whatever it takes to find out."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import OrderedDict
from contextlib import suppress
from hashlib import sha256
from typing import Any

from gateway.errors import InvalidArgument
from gateway.prepared import PreparedGuide
from gateway.tokenizer import Tokenizer
from services.child_process import environment_of
from services.gateway.guide_process import CPU_SECONDS, MEMORY_BYTES

MAX_REMEMBERED = 4096
"""Guides of which the outcome is kept, those asked for last."""

# Beside the limits that the process has: should it hang, or the machine be so busy that it gets no time.
_PATIENCE_SECONDS = 60.0


class GuideChecker:
    """Compiles guides in a process of its own, one after the other, each once.

    The process starts with the first guide. One that it does not survive is refused, and it starts anew.

    Args:
        tokenizer: The model's.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._outcomes: OrderedDict[bytes, str | None] = OrderedDict()

    async def check(self, guide: PreparedGuide | None) -> None:
        """Returns where the guide can be followed, or there is none.

        Raises:
            InvalidArgument: Naming the guide's field.
        """
        if guide is None:
            return
        key = sha256(guide.grammar.encode()).digest()
        if key not in self._outcomes:
            # Somebody who leaves must not take an answer along that the next one would read.
            await asyncio.shield(self._find_out(key, guide.grammar))
        self._outcomes.move_to_end(key)
        if (refusal := self._outcomes[key]) is not None:
            raise InvalidArgument(guide.field, refusal)

    async def _find_out(self, key: bytes, grammar: str) -> None:
        async with self._turn:
            if key in self._outcomes:
                return
            refusal = await self._start()
            if refusal is None:
                refusal = await self._ask(grammar)
            self._outcomes[key] = refusal
            if len(self._outcomes) > MAX_REMEMBERED:
                self._outcomes.popitem(last=False)

    async def _start(self) -> str | None:
        """Returns why no guide can be followed, if that is so."""
        if self._process is not None:
            return None
        tokenizer = await asyncio.to_thread(self._tokenizer.backend.to_str)
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "services.gateway.guide_process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment_of("gateway"),
        )
        eos_token_ids = [token for token in self._tokenizer.eos_token_ids if self._tokenizer.token(token) is not None]
        refusal = await self._ask([tokenizer, eos_token_ids])
        if refusal is not None:
            await self._end()
        return refusal

    async def _ask(self, question: Any) -> str | None:
        """Returns what is wrong."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(ConnectionError, asyncio.TimeoutError):
            process.stdin.write(json.dumps(question).encode() + b"\n")
            if line := await asyncio.wait_for(process.stdout.readline(), _PATIENCE_SECONDS):
                refusal: str | None = json.loads(line)
                return refusal
        return _why(await self._end())

    async def _end(self) -> int:
        """Ends the process if it has not ended, and returns its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        with suppress(ProcessLookupError):
            process.kill()
        return await process.wait()

    async def close(self) -> None:
        """Ends the process, if there is one."""
        await self._end()


def _why(exit_code: int) -> str:
    if exit_code == -signal.SIGPROF:
        return f"is too complex: it takes more than {CPU_SECONDS:g} s to compile"
    return f"is too complex: it can't be compiled in {MEMORY_BYTES >> 20} MiB of memory"
