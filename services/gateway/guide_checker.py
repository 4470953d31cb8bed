"""Sees to it that guides which can't be followed are refused, whatever it takes to find out."""

from __future__ import annotations

import asyncio
import signal
from collections import OrderedDict
from hashlib import sha256

from gateway.errors import InvalidArgument
from gateway.prepared import PreparedGuide
from gateway.tokenizer import Tokenizer
from services.gateway.compiling_process import CompilingProcess, ProcessDied
from services.gateway.guide_process import CPU_SECONDS, MEMORY_BYTES

MAX_REMEMBERED = 4096
"""Guides of which the outcome is kept, those asked for last."""

# Beside the limits that the process has: should it hang, or the machine be so busy that it gets no time.
_PATIENCE_SECONDS = 60.0

_TOO_MUCH: dict[int, str] = {
    signal.SIGPROF: f"{CPU_SECONDS:g} s",
    signal.SIGABRT: f"{MEMORY_BYTES >> 20} MiB of memory",
}
"""Signals by which the process ends when a guide is too much for it."""

# Whatever else ended the process may have had nothing to do with the guide.
_ATTEMPTS = 2


class GuideChecker:
    """Compiles guides in a process of its own, one after the other, each once.

    The process starts with the first guide. One that it does not survive is refused, and it starts anew; what ended it
    for another reason is not held against a guide.

    Args:
        tokenizer: The model's.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._process: CompilingProcess | None = None
        self._turn = asyncio.Lock()
        self._outcomes: OrderedDict[bytes, str | None] = OrderedDict()

    async def check(self, guide: PreparedGuide | None) -> None:
        """Returns where the guide can be followed, or there is none.

        Raises:
            InvalidArgument: Naming the guide's field.
        """
        if guide is None:
            return
        # Somebody who leaves must not take an answer along that the next one would read.
        refusal = await asyncio.shield(asyncio.ensure_future(self._outcome(guide.grammar)))
        if refusal is not None:
            raise InvalidArgument(guide.field, refusal)

    async def _outcome(self, grammar: str) -> str | None:
        key = sha256(grammar.encode()).digest()
        if key not in self._outcomes:
            async with self._turn:
                if key not in self._outcomes:
                    self._outcomes[key] = await self._find_out(grammar)
        self._outcomes.move_to_end(key)
        if len(self._outcomes) > MAX_REMEMBERED:
            self._outcomes.popitem(last=False)
        return self._outcomes[key]

    async def _find_out(self, grammar: str) -> str | None:
        asking = asyncio.ensure_future(asyncio.to_thread(self._ask, grammar))
        while not asking.done():
            await asyncio.wait([asking], timeout=_PATIENCE_SECONDS)
            if not asking.done() and self._process is not None:
                self._process.kill()
        return asking.result()

    def _ask(self, grammar: str) -> str | None:
        """Returns what is wrong with a grammar. Runs on a thread."""
        for attempt in range(_ATTEMPTS):
            try:
                return self._compile(grammar)
            except ProcessDied as death:
                self._process = None
                if attempt + 1 == _ATTEMPTS or -death.exit_code in _TOO_MUCH:
                    return _why(death.exit_code)
        raise AssertionError("there is an attempt")

    def _compile(self, grammar: str) -> str | None:
        if self._process is None:
            self._process = CompilingProcess()
            refusal = self._process.prepare(self._tokenizer)
            if refusal is not None:
                self._end()
                return refusal
        return self._process.refusal(grammar)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end()

    async def close(self) -> None:
        """Ends the process, if there is one."""
        await asyncio.to_thread(self._end)


def _why(exit_code: int) -> str:
    if -exit_code in _TOO_MUCH:
        return f"is too complex: it takes more than {_TOO_MUCH[-exit_code]} to compile"
    return f"can't be compiled: the process that tried has ended with exit code {exit_code}"
