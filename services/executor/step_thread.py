"""The thread that steps run on, one after the other."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

S = TypeVar("S")
R = TypeVar("R")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)

Deliver = Callable[["R | Exception | None"], None]
"""Told what became of one step: its result, or what it raised. None: there are no more steps of this stream."""


class Launched(Protocol[R_co]):
    """A step whose work is done, or in a device's line: see `executor.under_way.UnderWay`."""

    @property
    def is_done(self) -> bool:
        """Whether `result` answers at once."""

    def wait(self) -> None:
        """Returns when the device is done with the step; on any thread."""

    def result(self) -> R_co:
        """Waits until the device is done with the step."""


@dataclass(frozen=True, slots=True)
class _Step(Generic[S, R]):
    step: S
    deliver: Deliver[R]


@dataclass(frozen=True, slots=True)
class _Call(Generic[T]):
    call: Callable[[], T]
    answer: Future[T]


@dataclass(frozen=True, slots=True)
class _DeviceDone:
    """A device is done with the oldest step under way."""


class StepThread(Generic[S, R]):
    """Launches steps in the order in which they come, and delivers what becomes of them in that order.

    On a CPU a step is done when it was launched. On a GPU the next one is launched as soon as it comes, so that the GPU
    goes from one to the other; a second thread waits for the GPU. At most two are under way.

    Args:
        launch: one step.
    """

    def __init__(self, launch: Callable[[S], Launched[R]]) -> None:
        self._launch = launch
        self._line: SimpleQueue[_Step[S, R] | _Call[Any] | _DeviceDone | None] = SimpleQueue()
        self._under_way: deque[tuple[Launched[R], Deliver[R]]] = deque()
        self._waiter = _Waiter(lambda: self._line.put(_DeviceDone()))
        self._thread = threading.Thread(target=self._work, name="step", daemon=True)
        self._thread.start()

    def submit(self, step: S, deliver: Deliver[R]) -> None:
        """Puts a step in line. `deliver` is called on the thread with what became of it."""
        self._line.put(_Step(step, deliver))

    def end_stream(self, deliver: Deliver[R]) -> None:
        """Calls `deliver` with None when all steps before are done."""
        self.call(lambda: deliver(None))

    def call(self, call: Callable[[], T]) -> Future[T]:
        """Makes a call on the thread when all steps before are done, before any step after begins.

        Returns:
            What it returns or raises. Whoever cancels that before its turn comes takes the call back.
        """
        answer: Future[T] = Future()
        self._line.put(_Call(call, answer))
        return answer

    def close(self) -> None:
        """Returns when the steps in line are done."""
        self._line.put(None)
        self._thread.join()
        self._waiter.close()

    def _work(self) -> None:
        while (item := self._line.get()) is not None:
            if isinstance(item, _Step):
                self._start(item)
            elif isinstance(item, _Call):
                self._finish(leave=0)
                self._answer(item)
            while self._under_way and self._under_way[0][0].is_done:
                self._finish_oldest()
        self._finish(leave=0)

    def _start(self, item: _Step[S, R]) -> None:
        self._finish(leave=1)
        try:
            launched = self._launch(item.step)
        except Exception as error:  # told to whoever sent the step
            self._finish(leave=0)
            item.deliver(error)
            return
        self._under_way.append((launched, item.deliver))
        if not launched.is_done:
            self._waiter.watch(launched)

    @staticmethod
    def _answer(item: _Call[T]) -> None:
        if not item.answer.set_running_or_notify_cancel():
            return
        try:
            item.answer.set_result(item.call())
        except Exception as error:  # told to whoever called
            item.answer.set_exception(error)

    def _finish(self, leave: int) -> None:
        while len(self._under_way) > leave:
            self._finish_oldest()

    def _finish_oldest(self) -> None:
        launched, deliver = self._under_way.popleft()
        outcome: R | Exception
        try:
            outcome = launched.result()
        except Exception as error:  # told to whoever sent the step
            outcome = error
        deliver(outcome)


class _Waiter:
    """Waits for a device where the thread of steps can't, which is ready to launch.

    Its own thread starts with the first step that it has to wait for: on a CPU, never.

    Args:
        tell: called on that thread for each step that the device is done with.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._line: SimpleQueue[Launched[object] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def watch(self, launched: Launched[object]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="device", daemon=True)
            self._thread.start()
        self._line.put(launched)

    def close(self) -> None:
        self._line.put(None)
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while (launched := self._line.get()) is not None:
            with suppress(Exception):  # the result raises it again
                launched.wait()
            self._tell()
