"""The thread of steps: what is launched when, and in which order outcomes are delivered."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue

import pytest

from services.executor.step_thread import StepThread

_DEADLINE = 10


class Device:
    """Steps that are done when the test says so, or at once.

    Attributes:
        launched: what was launched, in order.
        refuses: steps that can't be launched.
    """

    def __init__(self, at_once=False):
        self.at_once = at_once
        self.launched = []
        self.refuses = set()
        self.steps = {}

    def launch(self, data):
        if data in self.refuses:
            raise ValueError(data.decode())
        step = self.steps[data] = Step(data)
        if self.at_once:
            step.done.set()
        self.launched.append(data)
        return step

    def finish(self, data):
        self.steps[data].done.set()


class Step:
    def __init__(self, data):
        self.data = data
        self.done = threading.Event()
        self.fails = False

    @property
    def is_done(self):
        return self.done.is_set()

    def wait(self):
        assert self.done.wait(_DEADLINE)
        if self.fails:
            raise RuntimeError("in wait")

    def result(self):
        self.wait()
        return self.data.upper()


@pytest.fixture
def start():
    threads = []

    def start(device):
        threads.append(StepThread(device.launch))
        return threads[-1]

    yield start
    for thread in threads:
        thread.close()


def _until(condition):
    deadline = time.monotonic() + _DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def _next(outcomes):
    outcome = outcomes.get(timeout=_DEADLINE)
    return repr(outcome) if isinstance(outcome, Exception) else outcome


def test_the_next_step_is_launched_while_the_device_is_at_the_first(start):
    device, outcomes = Device(), SimpleQueue()
    thread = start(device)
    thread.submit(b"a", outcomes.put)
    _until(lambda: device.launched == [b"a"])
    thread.submit(b"b", outcomes.put)
    _until(lambda: device.launched == [b"a", b"b"])
    assert outcomes.empty()
    device.finish(b"a")
    assert _next(outcomes) == b"A"
    thread.submit(b"c", outcomes.put)
    _until(lambda: device.launched == [b"a", b"b", b"c"])
    device.finish(b"b")
    assert _next(outcomes) == b"B"
    device.finish(b"c")
    assert _next(outcomes) == b"C"


def test_a_third_step_waits_for_the_first(start):
    device, outcomes = Device(), SimpleQueue()
    thread = start(device)
    for step in (b"a", b"b", b"c"):
        thread.submit(step, outcomes.put)
    _until(lambda: device.launched == [b"a", b"b"])
    device.finish(b"a")
    assert _next(outcomes) == b"A"
    _until(lambda: device.launched == [b"a", b"b", b"c"])
    device.finish(b"b")
    device.finish(b"c")
    assert [_next(outcomes), _next(outcomes)] == [b"B", b"C"]


def test_outcomes_come_in_order_whatever_is_done_first(start):
    device, outcomes = Device(), SimpleQueue()
    device.refuses.add(b"c")
    thread = start(device)
    thread.submit(b"a", outcomes.put)
    thread.submit(b"b", outcomes.put)
    _until(lambda: device.launched == [b"a", b"b"])
    device.finish(b"b")
    thread.submit(b"c", outcomes.put)
    thread.end_stream(outcomes.put)
    device.finish(b"a")
    assert [_next(outcomes) for _ in range(4)] == [b"A", b"B", "ValueError('c')", None]


def test_an_error_on_the_device_is_the_outcome(start):
    device, outcomes = Device(), SimpleQueue()
    thread = start(device)
    thread.submit(b"a", outcomes.put)
    _until(lambda: device.launched == [b"a"])
    device.steps[b"a"].fails = True
    device.finish(b"a")
    assert _next(outcomes) == "RuntimeError('in wait')"
    thread.submit(b"b", outcomes.put)
    _until(lambda: device.launched == [b"a", b"b"])
    device.finish(b"b")
    assert _next(outcomes) == b"B"


def test_what_is_done_at_once_needs_no_second_thread(start):
    device, outcomes = Device(at_once=True), SimpleQueue()
    thread = start(device)
    others = {each.name for each in threading.enumerate()}
    for step in (b"a", b"b", b"c"):
        thread.submit(step, outcomes.put)
    assert [_next(outcomes) for _ in range(3)] == [b"A", b"B", b"C"]
    assert {each.name for each in threading.enumerate()} <= others


def test_closing_finishes_what_is_under_way():
    device, outcomes = Device(), SimpleQueue()
    thread = StepThread(device.launch)
    thread.submit(b"a", outcomes.put)
    _until(lambda: device.launched == [b"a"])
    closing = threading.Thread(target=thread.close)
    closing.start()
    device.finish(b"a")
    closing.join(_DEADLINE)
    assert not closing.is_alive()
    assert _next(outcomes) == b"A"


def test_a_call_is_made_between_steps(start):
    device, outcomes = Device(), SimpleQueue()
    thread = start(device)
    thread.submit(b"a", outcomes.put)
    call = thread.call(lambda: (list(device.launched), outcomes.qsize()))
    failing = thread.call(lambda: [][0])
    thread.submit(b"b", outcomes.put)
    _until(lambda: device.launched == [b"a"])
    assert not call.done()
    device.finish(b"a")
    assert call.result(_DEADLINE) == ([b"a"], 1)
    with pytest.raises(IndexError):
        failing.result(_DEADLINE)
    _until(lambda: device.launched == [b"a", b"b"])
    device.finish(b"b")
