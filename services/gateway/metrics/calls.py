"""What becomes of calls: how many, how they end, how long they take, what they use."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from types import TracebackType

import grpc

from gateway.prepared import PreparedRequest
from octavo.v1 import common_pb2, kvmanager_pb2
from services.gateway.metrics import buckets
from services.rpc.status import RpcError
from services.telemetry.histogram import Exemplar, Histogram

_MIXED = "mixed"
"""The finish reason of a request whose sequences ended for different reasons."""

_REFUSALS = frozenset(
    {
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
_MOVES = frozenset({"DRAINING", "RESUMED_ELSEWHERE"})


class Outcome(Enum):
    """How a call ended.

    OK: with all that was asked for.
    CANCELLED: its client left.
    REFUSED: for what was asked, by whom, or how much of it.
    MOVED: it goes on at another gateway.
    FAILED: for a reason on this side, its time limit among them.
    """

    OK = "ok"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    MOVED = "moved"
    FAILED = "failed"


class CallMetrics:
    """Counts of a gateway's calls since it started.

    Args:
        clock: Seconds, of which only differences count.
        now: Seconds since 1970, for exemplars.

    Attributes:
        running: Calls by protocol.
        ended: Calls by protocol, kind, outcome and reason.
        refused: Calls that a limit kept out, by tenant and reason.
        prompt_tokens, cached_tokens, generated_tokens: By tenant: of prompts; those of them that were cached, known
            at the end of a request; handed out.
        time_to_first_token, inter_token, time_per_output_token, request_time: Seconds. The last two once for each
            request that was answered.
        queue_time, prefill_time, decode_time, preempted_time, inference_time: Seconds, as the KV manager tells them.
        request_prompt_tokens, request_generated_tokens, longest_sequence, max_tokens, sequences: Of each request that
            was answered. `max_tokens` only of those that set a limit.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.now = now
        self.running: Counter[str] = Counter()
        self.ended: Counter[tuple[str, str, str, str]] = Counter()
        self.refused: Counter[tuple[str, str]] = Counter()
        self.prompt_tokens: Counter[str] = Counter()
        self.cached_tokens: Counter[str] = Counter()
        self.generated_tokens: Counter[str] = Counter()
        self.time_to_first_token = Histogram(buckets.TIME_TO_FIRST_TOKEN)
        self.inter_token = Histogram(buckets.INTER_TOKEN)
        self.time_per_output_token = Histogram(buckets.INTER_TOKEN)
        self.request_time = Histogram(buckets.REQUEST_TIME)
        self.queue_time = Histogram(buckets.REQUEST_TIME)
        self.prefill_time = Histogram(buckets.REQUEST_TIME)
        self.decode_time = Histogram(buckets.REQUEST_TIME)
        self.inference_time = Histogram(buckets.REQUEST_TIME)
        self.preempted_time = Histogram(buckets.REQUEST_TIME)
        self.request_prompt_tokens = Histogram(buckets.REQUEST_TOKENS)
        self.request_generated_tokens = Histogram(buckets.REQUEST_TOKENS)
        self.longest_sequence = Histogram(buckets.REQUEST_TOKENS)
        self.max_tokens = Histogram(buckets.REQUEST_TOKENS)
        self.sequences = Histogram(buckets.SEQUENCES)

    def call(self, protocol: str, kind: str) -> CallMeter:
        """A call that begins, for the time of a ``with`` block.

        Args:
            protocol: That it came by.
            kind: What is asked for.
        """
        return CallMeter(self, protocol, kind)


class CallMeter:
    """Measures one call. What it costs is paid once for each response and each request, not for each token.

    Attributes:
        trace_id: Of the sampled trace that it belongs to; empty where there is none.
    """

    def __init__(self, metrics: CallMetrics, protocol: str, kind: str) -> None:
        self._metrics = metrics
        self._protocol = protocol
        self._kind = kind
        self.trace_id = ""
        self._start = metrics.clock()
        self._tenant = ""
        self._request: PreparedRequest | None = None
        self._resumed = False
        self._first_token: float | None = None
        self._latest: dict[int, float] = {}
        self._tokens: Counter[int] = Counter()
        self._reason = ""
        self._answered = False

    def __enter__(self) -> CallMeter:
        self._metrics.running[self._protocol] += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._metrics.running[self._protocol] -= 1
        outcome, reason = self._outcome(error)
        self._metrics.ended[self._protocol, self._kind, outcome.value, reason] += 1
        if isinstance(error, RpcError) and error.code is grpc.StatusCode.RESOURCE_EXHAUSTED and self._tenant:
            self._metrics.refused[self._tenant, error.reason] += 1

    def _outcome(self, error: BaseException | None) -> tuple[Outcome, str]:
        if error is None or self._answered:
            return Outcome.OK, self._reason
        if isinstance(error, (asyncio.CancelledError, GeneratorExit)):
            return Outcome.CANCELLED, "CANCELLED"
        if not isinstance(error, RpcError):
            return Outcome.FAILED, "INTERNAL"
        if error.reason in _MOVES:
            return Outcome.MOVED, error.reason
        return Outcome.REFUSED if error.code in _REFUSALS else Outcome.FAILED, error.reason

    def identified(self, tenant: str) -> None:
        """Whose call it is."""
        self._tenant = tenant

    def begun(self, request: PreparedRequest) -> None:
        """A request was let in."""
        self._request = request
        self._metrics.prompt_tokens[self._tenant] += len(request.prompt_token_ids)

    def resumed(self) -> None:
        """A request goes on that began with another call: how long it takes as a whole is not known here."""
        self._resumed = True

    def tokens(self, sequence_index: int, count: int) -> None:
        """A sequence's next tokens have come."""
        if not count:
            return
        metrics = self._metrics
        now = metrics.clock()
        before = self._latest.get(sequence_index)
        self._latest[sequence_index] = now
        if before is not None:
            seconds = (now - before) / count
            metrics.inter_token.observe(seconds, count, self._exemplar(seconds))
        elif self._first_token is None and not self._resumed:
            self._first_token = now
            seconds = now - self._start
            metrics.time_to_first_token.observe(seconds, exemplar=self._exemplar(seconds))
        self._tokens[sequence_index] += count
        metrics.generated_tokens[self._tenant] += count

    def _exemplar(self, value: float) -> Exemplar | None:
        return Exemplar(self.trace_id, value, self._metrics.now()) if self.trace_id else None

    def answered(
        self, usage: common_pb2.Usage, finish_reasons: Sequence[str], times: kvmanager_pb2.RequestTimes | None
    ) -> None:
        """All that was asked for is there."""
        self._answered = True
        self._reason = finish_reasons[0] if len(set(finish_reasons)) == 1 else _MIXED
        self._metrics.cached_tokens[self._tenant] += usage.cached_tokens
        if self._resumed:
            return
        if times is not None:
            self._observe_times(times)
        if self._request is not None:
            self._observe_request(self._request)

    def _observe_times(self, times: kvmanager_pb2.RequestTimes) -> None:
        metrics = self._metrics
        metrics.queue_time.observe(times.waiting_us / 1e6)
        metrics.prefill_time.observe(times.prefill_us / 1e6)
        metrics.decode_time.observe(times.decode_us / 1e6)
        metrics.inference_time.observe((times.prefill_us + times.decode_us) / 1e6)
        metrics.preempted_time.observe(times.preempted_us / 1e6)

    def _observe_request(self, request: PreparedRequest) -> None:
        metrics, now = self._metrics, self._metrics.clock()
        seconds = now - self._start
        metrics.request_time.observe(seconds, exemplar=self._exemplar(seconds))
        longest = max(self._tokens.values(), default=0)
        if self._first_token is not None and longest > 1:
            metrics.time_per_output_token.observe((now - self._first_token) / (longest - 1))
        metrics.request_prompt_tokens.observe(len(request.prompt_token_ids))
        metrics.request_generated_tokens.observe(self._tokens.total())
        metrics.longest_sequence.observe(longest)
        metrics.sequences.observe(request.kept)
        if request.max_tokens:
            metrics.max_tokens.observe(request.max_tokens)
