"""Spans of the requests that are traced, built from the core's events when a request ends."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from kvmanager.events import Event, EventKind
from octavo.v1 import common_pb2
from services.kvmanager.chunks import ChunksUnderWay
from services.telemetry.tracing import MAX_LINKS, Attributes, SpanRecord, Tracing

DECODE_STEP_INTERVAL = 32
"""Every so many steps also one that only decodes is traced on the executor."""


@dataclass(slots=True)
class _Trace:
    """What one request has been through. Times are seconds on the core's clock.

    Attributes:
        waiting_for: name of the span that ends with the next admission.
        waiting_reason: why it was not admitted when last looked at, or how it was preempted.
        preempted_by: how it was preempted; empty before.
        executor: where it was admitted last.
        has_token: its first token is there: from now on it decodes whenever it has no chunk to compute.
    """

    context: common_pb2.TraceContext
    spans: list[SpanRecord] = field(default_factory=list)
    waiting_since: float = 0.0
    waiting_for: str = "queue"
    waiting_reason: str = ""
    preempted_by: str = ""
    executor: str = ""
    has_token: bool = False
    decoding_since: float | None = None


class RequestTraces:
    """Listens to the core. An untraced request costs one dictionary look-up an event.

    Args:
        tracing: where spans go.
        epoch_offset: seconds to add to the core's clock to get the time since 1970.
    """

    def __init__(self, tracing: Tracing, epoch_offset: float) -> None:
        self._tracing = tracing
        self._offset = epoch_offset
        self._traces: dict[Hashable, _Trace] = {}
        self._chunks = ChunksUnderWay[Hashable]()

    def begin(self, handle: Hashable, context: common_pb2.TraceContext) -> None:
        """A traced request is about to be submitted."""
        self._traces[handle] = _Trace(context)

    def discard(self, handle: Hashable) -> None:
        """It was refused."""
        self._traces.pop(handle, None)
        self._chunks.forget(handle)

    def contexts_of_step(self, executor: str, step: int) -> list[common_pb2.TraceContext]:
        """Whose traces a step belongs to: requests it prefills, and now and then those it decodes."""
        if not self._traces:
            return []
        handles = list(self._chunks.of_step(executor, step))
        if not handles and step % DECODE_STEP_INTERVAL == 0:
            handles = [handle for handle, trace in self._traces.items() if self._decodes_on(trace, executor)]
        return [self._traces[handle].context for handle in handles[:MAX_LINKS] if handle in self._traces]

    def _decodes_on(self, trace: _Trace, executor: str) -> bool:
        return trace.decoding_since is not None and trace.executor == executor

    def on_event(self, event: Event) -> None:
        """Takes note of one decision."""
        if not self._traces:
            return
        if event.kind is EventKind.STEP_DONE:
            self._step_done(event)
            return
        trace = self._traces.get(event.handle)
        if trace is None:
            return
        match event.kind:
            case EventKind.QUEUED:
                trace.waiting_since = event.time
                trace.has_token = event.value > 0
            case EventKind.WAITED:
                trace.waiting_reason = event.detail
            case EventKind.ADMITTED:
                self._admitted(trace, event)
            case EventKind.PREFILL:
                self._chunks.add(event.handle, event)
                trace.decoding_since = None
            case EventKind.FIRST_TOKEN:
                trace.has_token = True
                trace.decoding_since = event.time
            case EventKind.PREEMPTED:
                self._preempted(trace, event)
            case EventKind.FINISHED:
                self._finish(trace, event)

    def _admitted(self, trace: _Trace, event: Event) -> None:
        trace.executor = event.executor
        attributes: dict[str, str | int] = {"octavo.cached_tokens": event.value, "octavo.executor": event.executor}
        if trace.waiting_reason:
            attributes["octavo.waited_for"] = trace.waiting_reason
        if trace.preempted_by:
            attributes["octavo.preemption"] = trace.preempted_by
        self._add(trace, trace.waiting_for, trace.waiting_since, event.time, attributes)
        if trace.has_token:  # it goes on where it left off, unless there is something to compute first
            trace.decoding_since = event.time

    def _step_done(self, event: Event) -> None:
        for handle, chunk in self._chunks.done(event):
            trace = self._traces[handle]
            attributes: dict[str, str | int] = {
                "octavo.step": event.step,
                "octavo.tokens": chunk.num_tokens,
                "octavo.executor": event.executor,
            }
            self._add(trace, "prefill", chunk.event.time, event.time, attributes)
            if trace.has_token and handle not in self._chunks and trace.decoding_since is None:
                trace.decoding_since = event.time

    def _preempted(self, trace: _Trace, event: Event) -> None:
        self._end_decode(trace, event.time)
        self._chunks.forget(event.handle)
        trace.waiting_since, trace.waiting_for = event.time, "preemption"
        trace.waiting_reason = trace.preempted_by = event.detail

    def _end_decode(self, trace: _Trace, now: float, num_tokens: int | None = None) -> None:
        if trace.decoding_since is not None:
            attributes = {} if num_tokens is None else {"octavo.completion_tokens": num_tokens}
            self._add(trace, "decode", trace.decoding_since, now, attributes)
            trace.decoding_since = None

    def _finish(self, trace: _Trace, event: Event) -> None:
        if trace.decoding_since is not None:
            self._end_decode(trace, event.time, event.value)
        elif not trace.spans:
            attributes = {"octavo.ended": event.detail}
            self._add(trace, trace.waiting_for, trace.waiting_since, event.time, attributes)
        self._tracing.record(trace.context, trace.spans)
        self._chunks.forget(event.handle)
        del self._traces[event.handle]

    def _add(self, trace: _Trace, name: str, start: float, end: float, attributes: Attributes) -> None:
        trace.spans.append(SpanRecord(name, self._nanoseconds(start), self._nanoseconds(end), attributes))

    def _nanoseconds(self, time: float) -> int:
        return int((time + self._offset) * 1e9)
