"""What is counted of calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import pytest

from octavo.v1 import common_pb2, kvmanager_pb2
from services.gateway.metrics.calls import CallMeter, CallMetrics
from services.rpc.status import RpcError
from services.telemetry.histogram import Histogram
from tests.services.gateway.prepared_requests import prepared

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(clock: Clock) -> CallMetrics:
    return CallMetrics(clock, lambda: 5000.0)


def mean(histogram: Histogram) -> float:
    return histogram.total / sum(histogram.counts)


def answer(meter: CallMeter, clock: Clock) -> None:
    """Two sequences: after 2 s their first tokens, then 4 tokens of the first in 1 s, then both end."""
    meter.identified("acme")
    meter.begun(prepared(n=2, kept=2, max_tokens=8))
    clock.now += 2.0
    meter.tokens(0, 1)
    meter.tokens(1, 1)
    clock.now += 1.0
    meter.tokens(0, 4)
    clock.now += 0.5
    meter.tokens(1, 1)
    meter.tokens(0, 0)
    times = kvmanager_pb2.RequestTimes(waiting_us=250_000, prefill_us=1_000_000, decode_us=2_000_000)
    meter.answered(common_pb2.Usage(cached_tokens=2), ["length", "length"], times)


def end_with(
    error: BaseException, metrics: CallMetrics, before: Callable[[CallMeter], None] = lambda meter: None
) -> None:
    with metrics.call("grpc", "generate") as meter:
        meter.identified("acme")
        before(meter)
        raise error


def test_an_answer(metrics: CallMetrics, clock: Clock) -> None:
    with metrics.call("openai", "generate") as meter:
        assert metrics.running == {"openai": 1}
        answer(meter, clock)
    assert metrics.running == {"openai": 0}
    assert metrics.ended == {("openai", "generate", "ok", "length"): 1}
    assert (metrics.prompt_tokens, metrics.cached_tokens, metrics.generated_tokens) == (
        {"acme": 3},
        {"acme": 2},
        {"acme": 7},
    )
    assert (sum(metrics.time_to_first_token.counts), mean(metrics.time_to_first_token)) == (1, 2.0)
    assert sum(metrics.inter_token.counts) == 5
    assert metrics.inter_token.total == pytest.approx(1.0 + 1.5)
    assert mean(metrics.request_time) == 3.5
    assert mean(metrics.time_per_output_token) == pytest.approx(1.5 / 4)
    assert mean(metrics.queue_time) == 0.25
    assert mean(metrics.prefill_time) == 1.0
    assert mean(metrics.decode_time) == 2.0
    assert mean(metrics.inference_time) == 3.0
    assert mean(metrics.request_prompt_tokens) == 3
    assert mean(metrics.request_generated_tokens) == 7
    assert mean(metrics.longest_sequence) == 5
    assert mean(metrics.sequences) == 2
    assert mean(metrics.max_tokens) == 8


def test_only_a_sampled_request_is_an_example(metrics: CallMetrics, clock: Clock) -> None:
    for trace_id in (TRACE_ID, ""):
        with metrics.call("grpc", "generate") as meter:
            meter.trace_id = trace_id
            answer(meter, clock)
    for histogram, value in (
        (metrics.time_to_first_token, 2.0),
        (metrics.inter_token, 0.25),
        (metrics.request_time, 3.5),
    ):
        exemplars = [bucket.exemplar for bucket in histogram.buckets() if bucket.exemplar is not None]
        assert (TRACE_ID, value, 5000.0) in exemplars
        assert {each.trace_id for each in exemplars} == {TRACE_ID}


def test_a_resumed_call_says_nothing_of_the_whole_request(metrics: CallMetrics, clock: Clock) -> None:
    with metrics.call("grpc", "resume") as meter:
        meter.identified("acme")
        meter.resumed()
        meter.tokens(0, 3)
        clock.now += 1.0
        meter.tokens(0, 1)
        meter.answered(common_pb2.Usage(), ["stop"], kvmanager_pb2.RequestTimes(waiting_us=1))
    assert metrics.ended == {("grpc", "resume", "ok", "stop"): 1}
    assert metrics.generated_tokens == {"acme": 4}
    assert sum(metrics.inter_token.counts) == 1
    for histogram in (
        metrics.time_to_first_token,
        metrics.request_time,
        metrics.queue_time,
        metrics.request_prompt_tokens,
    ):
        assert not any(histogram.counts)


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (asyncio.CancelledError(), "cancelled", "CANCELLED"),
        (GeneratorExit(), "cancelled", "CANCELLED"),
        (RpcError(grpc.StatusCode.INVALID_ARGUMENT, "no", "INVALID_ARGUMENT", "n"), "refused", "INVALID_ARGUMENT"),
        (RpcError(grpc.StatusCode.RESOURCE_EXHAUSTED, "no", "TENANT_LIMIT"), "refused", "TENANT_LIMIT"),
        (RpcError(grpc.StatusCode.UNAVAILABLE, "no", "DRAINING"), "moved", "DRAINING"),
        (RpcError(grpc.StatusCode.UNAVAILABLE, "no", "BACKEND_UNAVAILABLE"), "failed", "BACKEND_UNAVAILABLE"),
        (RpcError(grpc.StatusCode.DEADLINE_EXCEEDED, "no", "DEADLINE_EXCEEDED"), "failed", "DEADLINE_EXCEEDED"),
        (ZeroDivisionError(), "failed", "INTERNAL"),
    ],
)
def test_a_call_that_fails(metrics: CallMetrics, error: BaseException, outcome: str, reason: str) -> None:
    with pytest.raises(type(error)):
        end_with(error, metrics)
    assert metrics.ended == {("grpc", "generate", outcome, reason): 1}
    assert metrics.refused == ({("acme", "TENANT_LIMIT"): 1} if reason == "TENANT_LIMIT" else {})
    assert metrics.running == {"grpc": 0}


def test_a_client_that_leaves_once_it_has_everything_was_answered(metrics: CallMetrics, clock: Clock) -> None:
    with pytest.raises(asyncio.CancelledError):
        end_with(asyncio.CancelledError(), metrics, lambda meter: answer(meter, clock))
    assert metrics.ended == {("grpc", "generate", "ok", "length"): 1}


def test_sequences_that_end_for_different_reasons(metrics: CallMetrics) -> None:
    with metrics.call("grpc", "generate") as meter:
        meter.answered(common_pb2.Usage(), ["stop", "length"], None)
    assert metrics.ended == {("grpc", "generate", "ok", "mixed"): 1}
