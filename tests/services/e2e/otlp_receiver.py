"""A real OTLP collector in a process of its own, and the spans that it received."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from tests.ports import free_port
from tests.services.e2e.processes import Process, Processes, eventually


def find_rotel() -> str | None:
    """The program of the package rotel, or None where it is not installed."""
    package = find_spec("rotel")
    if package is None or package.origin is None:
        return None
    program = Path(package.origin).with_name("rotel-agent")
    return str(program) if os.access(program, os.X_OK) else None


@dataclass
class Span:
    """One span as the collector saw it. Attributes are the text that it prints, such as ``Int(3)``."""

    service: str
    trace_id: str = ""
    span_id: str = ""
    parent_id: str = ""
    name: str = ""
    kind: str = ""
    start: int = 0
    end: int = 0
    status: str = ""
    status_message: str = ""
    attributes: dict[str, str] = field(default_factory=dict)
    links: list[dict[str, str]] = field(default_factory=list)


_FIELDS = {
    "Trace ID": "trace_id",
    "Parent ID": "parent_id",
    "ID": "span_id",
    "Name": "name",
    "Kind": "kind",
    "Status code": "status",
    "Status message": "status_message",
}
_ENTRY = re.compile(r"\s+-> ([^:]+): ?(.*)")
_FIELD = re.compile(r"\s*([A-Za-z ]+?)\s*: ?(.*)")


def parse_spans(log: str) -> Iterator[Span]:
    """Spans from the collector's detailed debug log."""
    service, span = "", None
    entries: dict[str, str] = {}
    for line in log.splitlines():
        if entry := _ENTRY.fullmatch(line):
            entries[entry[1]] = entry[2]
            if entry[1] == "service.name":
                service = entry[2].removeprefix("Str(").removesuffix(")")
        elif line.startswith("Span #"):
            if span is not None:
                yield span
            span = Span(service)
        elif line.startswith("ResourceSpans #"):
            if span is not None:
                yield span
            span, entries = None, {}
        elif span is not None:
            if line.startswith("SpanLink #"):
                entries = {}
                span.links.append(entries)
            elif line == "Attributes:":
                entries = span.attributes
            elif line.startswith(("Start time: ", "End time: ")):
                setattr(span, line.split()[0].lower(), int(line.rpartition(" ")[2]))
            elif (found := _FIELD.fullmatch(line)) and found[1] in _FIELDS:
                setattr(span, _FIELDS[found[1]], found[2])
    if span is not None:
        yield span


class OtlpReceiver:
    """The collector. It is not started yet."""

    def __init__(self, processes: Processes, program: str) -> None:
        self._port = free_port()
        options = {
            "otlp-grpc-endpoint": f"127.0.0.1:{self._port}",
            "otlp-http-endpoint": f"127.0.0.1:{free_port()}",
            "exporter": "blackhole",
            "debug-log": "traces",
            "debug-log-verbosity": "detailed",
        }
        flags = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._process: Process = processes.other("collector", [program, "start", *flags])
        self.endpoint = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Returns when it listens."""
        self._process.start()
        eventually(self._listens, what="the collector listens")

    def _listens(self) -> bool:
        assert self._process.running, self._process.output()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def spans(self) -> list[Span]:
        """All that it has received."""
        return list(parse_spans(self._process.output()))

    def kill(self) -> None:
        self._process.kill()
