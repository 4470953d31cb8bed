"""Spans made from timestamps after the fact, and the trace context that travels with each request.

The OpenTelemetry SDK is imported only where traces are on: it costs half a second at start.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from octavo.v1 import common_pb2

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

Attributes = Mapping[str, str | int | float | bool | Sequence[str]]

MAX_LINKS = 16
"""A span with many links costs more than the step it describes."""

SHUTDOWN_SECONDS = 2.0
"""What the last spans get at the end of the process. The exporter alone would try for ten seconds a batch."""


@dataclass(slots=True)
class SpanRecord:
    """A span that is over. Times are nanoseconds since the epoch."""

    name: str
    start_ns: int
    end_ns: int
    attributes: Attributes
    error: str = ""


_TRACE_PARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-([0-9a-f]{2})(-.*)?")


def sampled_trace_id(context: common_pb2.TraceContext | None) -> str:
    """The id of the trace, in hexadecimal digits, if it is sampled; else nothing.

    Source: https://www.w3.org/TR/trace-context/#traceparent-header
    """
    found = _TRACE_PARENT.fullmatch(context.traceparent) if context is not None else None
    return found[1] if found is not None and int(found[2], 16) & 1 else ""


class RequestSpan(Protocol):
    """The span of one request, from its arrival at the gateway to its end."""

    @property
    def context(self) -> common_pb2.TraceContext | None:
        """What the other processes need to join the trace; None where it is not sampled."""

    def end(self, attributes: Attributes, error: str = "") -> None:
        """The request is over."""


class Tracing(Protocol):
    """Where a process's spans go."""

    def start_request(self, name: str, parent: common_pb2.TraceContext | None, attributes: Attributes) -> RequestSpan:
        """Starts the span of a request."""

    def record(
        self,
        parent: common_pb2.TraceContext,
        spans: Sequence[SpanRecord],
        links: Sequence[common_pb2.TraceContext] = (),
    ) -> None:
        """Writes spans that are over, as children of a request's span."""

    def shutdown(self) -> None:
        """Sends what is left; a collector that is away does not hold up the end of the process for long."""


class _NoSpan:
    context: common_pb2.TraceContext | None = None

    def end(self, attributes: Attributes, error: str = "") -> None:
        pass


class NoTracing:
    """Traces are off."""

    def start_request(self, name: str, parent: common_pb2.TraceContext | None, attributes: Attributes) -> RequestSpan:
        return _NoSpan()

    def record(
        self,
        parent: common_pb2.TraceContext,
        spans: Sequence[SpanRecord],
        links: Sequence[common_pb2.TraceContext] = (),
    ) -> None:
        pass

    def shutdown(self) -> None:
        pass


def make_tracing(service_name: str, otlp_endpoint: str | None) -> Tracing:
    """Traces over OTLP/gRPC to the endpoint, or none."""
    if not otlp_endpoint:
        return NoTracing()
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_NAMESPACE, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: service_name, SERVICE_NAMESPACE: "octavo"}))
    exporter = OTLPSpanExporter(endpoint=otlp_endpoint, insecure=not otlp_endpoint.startswith("https://"))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return OtlpTracing(provider, exporter)


class OtlpTracing:
    """Spans through the OpenTelemetry SDK."""

    def __init__(self, provider: TracerProvider, exporter: SpanExporter) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._exporter = exporter
        self._tracer = provider.get_tracer("octavo")
        self._propagator = TraceContextTextMapPropagator()

    def start_request(self, name: str, parent: common_pb2.TraceContext | None, attributes: Attributes) -> RequestSpan:
        from opentelemetry.trace import SpanKind

        context = self._propagator.extract(_carrier(parent)) if parent is not None else None
        span = self._tracer.start_span(name, context=context, kind=SpanKind.SERVER, attributes=dict(attributes))
        return _OtlpRequestSpan(self, span)

    def record(
        self,
        parent: common_pb2.TraceContext,
        spans: Sequence[SpanRecord],
        links: Sequence[common_pb2.TraceContext] = (),
    ) -> None:
        from opentelemetry.trace import Link, Status, StatusCode, get_current_span

        context = self._propagator.extract(_carrier(parent))
        linked = [get_current_span(self._propagator.extract(_carrier(link))).get_span_context() for link in links]
        for record in spans:
            span = self._tracer.start_span(
                record.name,
                context=context,
                attributes=dict(record.attributes),
                links=[Link(each) for each in linked[:MAX_LINKS]],
                start_time=record.start_ns,
            )
            if record.error:
                span.set_status(Status(StatusCode.ERROR, record.error))
            span.end(record.end_ns)

    def shutdown(self) -> None:
        last = threading.Thread(target=self._provider.shutdown, daemon=True)
        last.start()
        last.join(SHUTDOWN_SECONDS)
        if last.is_alive():
            self._exporter.shutdown()  # ends its retries
            last.join()


class _OtlpRequestSpan:
    def __init__(self, tracing: OtlpTracing, span: Span) -> None:
        from opentelemetry.trace import set_span_in_context

        self._span = span
        self.context: common_pb2.TraceContext | None = None
        if span.is_recording():
            carrier: dict[str, str] = {}
            tracing._propagator.inject(carrier, set_span_in_context(span))
            self.context = common_pb2.TraceContext(**carrier)

    def end(self, attributes: Attributes, error: str = "") -> None:
        from opentelemetry.trace import Status, StatusCode

        self._span.set_attributes(dict(attributes))
        if error:
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end()


def _carrier(context: common_pb2.TraceContext) -> dict[str, str]:
    return {"traceparent": context.traceparent, "tracestate": context.tracestate}
