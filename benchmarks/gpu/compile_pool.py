"""Compiles many forms of kernels at once, each within a time limit.

A tile that is too large for the registers may keep the compiler busy for minutes, in code that only the end of its
process stops. So each compiler is a process of its own, which is ended with the assembler it has started.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from benchmarks.gpu.compile import SHARED_LIMITS, Compiled, Form, compile_form, forms, kernel_modules

Task = tuple[Form, int]

# Importing torch and Triton, on a busy machine too.
_START_SECONDS = 120.0
_READY = "ready"


def all_tasks(modules: Sequence[str] = (), capabilities: Iterable[int] = tuple(SHARED_LIMITS)) -> list[Task]:
    """Every form of every module, or of all kernel modules where none is named, for each GPU that can have it.

    Raises:
        RuntimeError: the modules could not be asked.
    """
    with _Compiler() as compiler:
        listed = [item for module in modules or compiler.ask(kernel_modules) for item in compiler.ask(forms, module)]
    return [(form, capability) for capability in capabilities for form, lowest in listed if lowest <= capability]


def compile_tasks(tasks: Iterable[Task], processes: int, limit_s: float) -> Iterator[Compiled]:
    """Compiles them, each within `limit_s` seconds, and yields each when it is done.

    What fails or takes too long is an error in its result.
    """
    waiting = deque(tasks)
    with ExitStack() as stack:
        compilers = [stack.enter_context(_Compiler()) for _ in range(min(processes, len(waiting)))]
        busy: dict[_Compiler, Task] = {}
        while waiting or busy:
            for compiler in compilers:
                if waiting and compiler not in busy:
                    busy[compiler] = task = waiting.popleft()
                    compiler.start(limit_s, compile_form, *task)
            wait([compiler.pipe for compiler in busy], max(0.0, min(compiler.remaining_s for compiler in busy)))
            for compiler, (form, capability) in list(busy.items()):
                if compiler.pipe.poll() or compiler.remaining_s <= 0:
                    del busy[compiler]
                    try:
                        yield compiler.answer()
                    except (RuntimeError, TimeoutError) as error:
                        yield Compiled(form.name, capability, error=str(error))


class _Compiler:
    """A process that computes one function after another; a new one where the last had to be ended."""

    _is_ready: bool

    def __enter__(self) -> _Compiler:
        self._cache = tempfile.TemporaryDirectory(prefix="compiled-")
        self._launch()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._cache.cleanup()

    @property
    def remaining_s(self) -> float:
        return self._deadline - time.monotonic()

    def start(self, limit_s: float, function: Callable[..., object], *arguments: object) -> None:
        """Has it computed; `pipe` has something to read when that is done.

        Raises:
            RuntimeError: the process doesn't start.
        """
        if not self._is_ready:
            try:
                started = self.pipe.poll(_START_SECONDS) and self.pipe.recv() == _READY
            except EOFError:
                started = False
            if not started:
                raise RuntimeError("the compiling process did not start")
            self._is_ready = True
        self._limit_s = limit_s
        self._deadline = time.monotonic() + limit_s
        self.pipe.send((function, arguments))

    def answer(self) -> Any:
        """What the function returned.

        Raises:
            RuntimeError: it raised something, or its process ended.
            TimeoutError: it took too long, and was ended.
        """
        if not self.pipe.poll(max(0.0, self.remaining_s)):
            self._restart()
            raise TimeoutError(f"not compiled within {self._limit_s:g} s")
        try:
            failed, result = self.pipe.recv()
        except EOFError:
            self._restart()
            raise RuntimeError("the compiling process ended") from None
        if failed:
            raise RuntimeError(result)
        return result

    def ask(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Computes it now."""
        self.start(_START_SECONDS, function, *arguments)
        return self.answer()

    def _launch(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_compute, args=(theirs, self._cache.name), daemon=True)
        self._process.start()
        theirs.close()
        self._is_ready = False

    def _end(self) -> None:
        self.pipe.close()
        assert self._process.pid
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()  # where it was no group yet
        self._process.join()

    def _restart(self) -> None:
        self._end()
        self._launch()


def _compute(pipe: Connection, cache: str) -> None:
    os.setsid()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.pop("TRITON_INTERPRET", None)
    os.environ["TRITON_CACHE_DIR"] = cache
    importlib.import_module("triton")
    pipe.send(_READY)
    with suppress(EOFError):
        while True:
            function, arguments = pipe.recv()
            try:
                answer = (False, function(*arguments))
            except Exception as error:
                answer = (True, f"{type(error).__name__}: {error}")
            pipe.send(answer)


def _end_with_parent() -> None:
    """Whoever kills the parent does not wait for what is being compiled."""
    parent = multiprocessing.parent_process()
    assert parent
    wait([parent.sentinel])
    os.killpg(0, signal.SIGKILL)
