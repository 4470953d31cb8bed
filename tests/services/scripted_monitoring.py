"""A real gRPC server that tells of a stack which a test makes up."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager

import grpc
from google.protobuf.duration_pb2 import Duration

from octavo.v1 import memory_pb2, monitoring_pb2, monitoring_pb2_grpc
from octavo.v1 import monitoring_pb2 as pb
from tests.services.scripted_server import refuse

KINDS = {
    "queued": pb.DECISION_KIND_QUEUED,
    "waited": pb.DECISION_KIND_WAITED,
    "admitted": pb.DECISION_KIND_ADMITTED,
    "prefill": pb.DECISION_KIND_PREFILL,
    "first": pb.DECISION_KIND_FIRST_TOKEN,
    "preempted": pb.DECISION_KIND_PREEMPTED,
    "finished": pb.DECISION_KIND_FINISHED,
}


class ScriptedMonitoring(monitoring_pb2_grpc.MonitoringServiceServicer):
    """Says what it was given.

    Attributes:
        statuses: Each is one message; None ends the stream as a gateway does that goes away.
        requests: What there is.
        timelines: By request id.
        key: Who may ask; empty: everybody.
    """

    def __init__(self) -> None:
        self.statuses: queue.Queue[pb.WatchStatusResponse | None] = queue.Queue()
        self.requests: list[pb.RequestView] = []
        self.timelines: dict[str, pb.Timeline] = {}
        self.tree = pb.GetPrefixTreeResponse()
        self.key = ""
        self.intervals: list[float] = []
        self.asked: list[object] = []
        self.closing = False

    def _identify(self, context: grpc.ServicerContext) -> None:
        brought = dict(context.invocation_metadata()).get("authorization")
        if self.key and brought != f"Bearer {self.key}":
            refuse(context, grpc.StatusCode.UNAUTHENTICATED, "an API key is needed")

    def WatchStatus(
        self, request: pb.WatchStatusRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.WatchStatusResponse]:
        self._identify(context)
        self.intervals.append(request.interval.ToNanoseconds() / 1e9)
        while context.is_active() and not self.closing:
            try:
                status = self.statuses.get(timeout=0.05)
            except queue.Empty:
                continue
            if status is None:
                context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
            assert status is not None
            yield status

    def ListRequests(self, request: pb.ListRequestsRequest, context: grpc.ServicerContext) -> pb.ListRequestsResponse:
        self._identify(context)
        self.asked.append(request)
        return pb.ListRequestsResponse(requests=self.requests)

    def ExplainRequest(
        self, request: pb.ExplainRequestRequest, context: grpc.ServicerContext
    ) -> pb.ExplainRequestResponse:
        self._identify(context)
        if request.request_id not in self.timelines:
            refuse(context, grpc.StatusCode.NOT_FOUND, "request_id: there is no such request")
        return pb.ExplainRequestResponse(timeline=self.timelines[request.request_id])

    def GetPrefixTree(
        self, request: pb.GetPrefixTreeRequest, context: grpc.ServicerContext
    ) -> pb.GetPrefixTreeResponse:
        self._identify(context)
        self.asked.append(request)
        return self.tree


@contextmanager
def monitored(servicer: ScriptedMonitoring, port: int = 0) -> Iterator[str]:
    """Serves on loopback, and gives the address."""
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    monitoring_pb2_grpc.add_MonitoringServiceServicer_to_server(servicer, server)
    address = f"127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
    server.start()
    try:
        yield address
    finally:
        servicer.closing = True
        server.stop(0).wait()


def duration(seconds: float) -> Duration:
    message = Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


def decision(
    kind: str, at: float, until: float | None = None, reason: str = "", tokens: int = 0, step: int = 0, on: str = ""
) -> pb.Decision:
    """One decision, times in seconds."""
    return pb.Decision(
        kind=KINDS[kind],
        at=duration(at),
        until=None if until is None else duration(until),
        reason=reason,
        tokens=tokens,
        step=step,
        executor=on,
    )


def a_status(number: int = 0, *, running: int = 3, generated: int = 0, tenants: int = 2) -> pb.Status:
    """A stack of two executors; `number` is the second at which it was."""
    executors = [
        memory_pb2.ExecutorMemory(
            executor=f"10.0.0.{each}:50053",
            device=memory_pb2.PoolState(num_blocks=1000, free_blocks=200, cached_blocks=300, referenced_blocks=500),
            host=memory_pb2.PoolState(num_blocks=400, free_blocks=400),
            running_requests=running,
            waiting_requests=each,
        )
        for each in (1, 2)
    ]
    status = monitoring_pb2.Status(
        ready=True,
        running_requests=running,
        waiting_requests=3,
        swapped_requests=1,
        batch_sequences=running,
        batch_prefill_tokens=64,
        batch_decode_tokens=running,
        executors=executors,
        bytes_per_block=1 << 20,
        state_available=True,
        counters=memory_pb2.MemoryCounters(
            steps=number,
            prompt_tokens=1000 * number,
            cached_prompt_tokens=250 * number,
            generated_tokens=generated or 100 * number,
            preemptions=7,
            preemptions_by_swap=2,
            slot_steps=1000,
            internal_slot_steps=25,
            reserved_slot_steps=5,
            unshared_slot_steps=1500,
        ),
        tenants=[
            monitoring_pb2.TenantStatus(
                memory=memory_pb2.TenantMemory(
                    owner=f"tenant-{each}", charged_blocks=100 * each, cached_blocks=10, max_blocks=500, weight=1
                ),
                running_requests=each,
                waiting_requests=1,
                swapped_requests=4,
            )
            for each in range(1, tenants + 1)
        ],
    )
    status.model.name = "tiny"
    status.model.block_size = 16
    status.time.FromNanoseconds(round((1_700_000_000 + number) * 1e9))
    return status
