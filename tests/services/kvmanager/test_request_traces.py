"""Spans of a request, made of the core's events: steps of several executors, and both ways of preemption."""

from __future__ import annotations

from collections.abc import Sequence

from kvmanager.events import Event, EventKind
from octavo.v1 import common_pb2
from services.kvmanager.request_traces import DECODE_STEP_INTERVAL, RequestTraces
from services.telemetry.tracing import NoTracing, SpanRecord

OFFSET = 1000.0


class Recorder(NoTracing):
    """Keeps what it is given to write."""

    def __init__(self) -> None:
        self.spans: dict[str, Sequence[SpanRecord]] = {}

    def record(
        self,
        parent: common_pb2.TraceContext,
        spans: Sequence[SpanRecord],
        links: Sequence[common_pb2.TraceContext] = (),
    ) -> None:
        self.spans[parent.traceparent] = spans

    def of(self, request: str) -> list[tuple[str, float, float]]:
        """Name, start and end of a request's spans, on the core's clock."""
        return [(span.name, span.start_ns / 1e9 - OFFSET, span.end_ns / 1e9 - OFFSET) for span in self.spans[request]]

    def attributes(self, request: str, name: str) -> dict[str, object]:
        (span,) = [span for span in self.spans[request] if span.name == name]
        return dict(span.attributes)


class Listener:
    """A core that tells of its decisions."""

    def __init__(self, *requests: str) -> None:
        self.recorder = Recorder()
        self.traces = RequestTraces(self.recorder, OFFSET)
        for request in requests:
            self.traces.begin(request, common_pb2.TraceContext(traceparent=request))
            self(EventKind.QUEUED, 0, request)

    def __call__(
        self,
        kind: EventKind,
        time: float,
        request: str | None = None,
        executor: str = "",
        step: int = 0,
        **more: object,
    ) -> None:
        self.traces.on_event(Event(kind, time, request, step, executor=executor, **more))  # type: ignore[arg-type]

    def start(self, time: float, request: str, executor: str, step: int) -> None:
        """Admitted, and all of its prompt in one step."""
        self(EventKind.ADMITTED, time, request, executor, value=3)
        self(EventKind.PREFILL, time, request, executor, step, value=10)

    def traced(self, executor: str, step: int) -> list[str]:
        return [context.traceparent for context in self.traces.contexts_of_step(executor, step)]


def test_step_numbers_are_each_executor_s_own() -> None:
    core = Listener("a", "b")
    core.start(1, "a", "one", 7)
    core.start(2, "b", "two", 7)
    assert core.traced("one", 7) == ["a"]
    assert core.traced("two", 7) == ["b"]
    core(EventKind.STEP_DONE, 3, None, "two", 7)
    core(EventKind.FIRST_TOKEN, 3, "b")
    core(EventKind.STEP_DONE, 4, None, "one", 7)
    core(EventKind.FIRST_TOKEN, 4, "a")
    assert core.traced("one", DECODE_STEP_INTERVAL) == ["a"]
    assert core.traced("two", DECODE_STEP_INTERVAL) == ["b"]
    assert core.traced("two", DECODE_STEP_INTERVAL + 1) == []
    core(EventKind.FINISHED, 5, "a", detail="done", value=2)
    core(EventKind.FINISHED, 6, "b", detail="done", value=2)
    assert core.recorder.of("a") == [("queue", 0, 1), ("prefill", 1, 4), ("decode", 4, 5)]
    assert core.recorder.of("b") == [("queue", 0, 2), ("prefill", 2, 3), ("decode", 3, 6)]
    assert core.recorder.attributes("a", "prefill") == {
        "octavo.step": 7,
        "octavo.tokens": 10,
        "octavo.executor": "one",
    }
    assert core.recorder.attributes("b", "queue") == {"octavo.cached_tokens": 3, "octavo.executor": "two"}
    assert core.traced("one", 7) == []


def test_a_swapped_request_goes_on_where_it_left_off() -> None:
    core = Listener("a")
    core.start(1, "a", "one", 1)
    core(EventKind.STEP_DONE, 2, None, "one", 1)
    core(EventKind.FIRST_TOKEN, 2, "a")
    core(EventKind.PREEMPTED, 3, "a", detail="swap")
    assert core.traced("one", DECODE_STEP_INTERVAL) == []
    core(EventKind.WAITED, 4, "a", detail="blocks")
    core(EventKind.ADMITTED, 5, "a", "one", value=40)
    assert core.traced("one", DECODE_STEP_INTERVAL) == ["a"]
    core(EventKind.FINISHED, 6, "a", detail="done", value=9)
    assert core.recorder.of("a") == [
        ("queue", 0, 1),
        ("prefill", 1, 2),
        ("decode", 2, 3),
        ("preemption", 3, 5),
        ("decode", 5, 6),
    ]
    assert core.recorder.attributes("a", "preemption") == {
        "octavo.cached_tokens": 40,
        "octavo.executor": "one",
        "octavo.preemption": "swap",
        "octavo.waited_for": "blocks",
    }


def test_one_that_is_computed_again_decodes_after_its_last_chunk() -> None:
    """On another executor, whose steps have lower numbers."""
    core = Listener("a")
    core.start(1, "a", "one", 50)
    core(EventKind.STEP_DONE, 2, None, "one", 50)
    core(EventKind.FIRST_TOKEN, 2, "a")
    core(EventKind.PREEMPTED, 3, "a", detail="executor lost")
    core.start(4, "a", "two", 1)
    core(EventKind.PREFILL, 5, "a", "two", 2, value=5)
    core(EventKind.PREFILL, 5, "a", "two", 2, value=5)  # another sequence of it
    core(EventKind.STEP_DONE, 6, None, "two", 1)
    assert core.traced("two", DECODE_STEP_INTERVAL) == []
    core(EventKind.STEP_DONE, 7, None, "two", 2)
    core(EventKind.FINISHED, 8, "a", detail="done", value=9)
    assert core.recorder.of("a")[3:] == [
        ("preemption", 3, 4),
        ("prefill", 4, 6),
        ("prefill", 5, 7),
        ("decode", 7, 8),
    ]
    assert core.recorder.spans["a"][5].attributes["octavo.tokens"] == 10


def test_a_request_that_was_never_admitted_shows_how_it_ended() -> None:
    core = Listener("a")
    core(EventKind.FINISHED, 2, "a", detail="DeadlineExceeded")
    assert core.recorder.of("a") == [("queue", 0, 2)]
    assert core.recorder.attributes("a", "queue") == {"octavo.ended": "DeadlineExceeded"}
