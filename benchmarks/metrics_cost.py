"""What counting costs the services, and what a scrape of a gateway does.

    python -m benchmarks.metrics_cost

Prints a JSON line for each: microseconds of processor time, the best of several rounds. Nothing is sent anywhere.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator

from prometheus_client.core import Metric

from gateway.prepared import PreparedRequest, ResolvedSampling
from kvmanager.step import StepBatch
from octavo.v1 import common_pb2, kvmanager_pb2
from services.executor.metrics import ExecutorMetrics
from services.gateway.metrics.calls import CallMetrics
from services.gateway.metrics.cluster import Cluster
from services.gateway.metrics.own_names import GatewayState, own_families
from services.gateway.metrics.vllm_names import vllm_families
from services.kvmanager.metrics import DriverMetrics
from services.telemetry.metrics import Exposition

ROUNDS = 7
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
OPENMETRICS = "application/openmetrics-text;version=1.0.0"
EXECUTOR = "executor"
REQUEST = PreparedRequest(
    request_id="request",
    model="model",
    tenant="acme",
    prompt_token_ids=[0] * 100,
    spans=(),
    n=1,
    best_of=0,
    beam=None,
    kept=1,
    shows_logprobs=False,
    max_tokens=100,
    min_tokens=0,
    stop_token_ids=(),
    sampling=ResolvedSampling(
        temperature=0.0,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        seed=0,
        logprobs=None,
        stop=(),
        skip_special_tokens=True,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
        logit_bias={},
        guide=None,
    ),
    timeout_us=0,
    priority=0,
    report_progress=False,
    response_interval=None,
)


def best_us(call: Callable[[], object], number: int) -> float:
    """Of the rounds' means over so many calls."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(number):
            call()
        best = min(best, (time.process_time() - start) / number)
    return round(best * 1e6, 2)


def gateway() -> None:
    metrics = CallMetrics()
    for what, trace_id in (("response", ""), ("response, sampled", TRACE_ID)):
        meter = metrics.call("grpc", "generate")
        meter.identified("acme")
        meter.trace_id = trace_id
        report("gateway", what, best_us(lambda meter=meter: meter.tokens(0, 1), 20_000))  # type: ignore[misc]
    times, usage = kvmanager_pb2.RequestTimes(waiting_us=1, prefill_us=2, decode_us=3), common_pb2.Usage()

    def request() -> None:
        with metrics.call("grpc", "generate") as meter:
            meter.identified("acme")
            meter.begun(REQUEST)
            meter.tokens(0, 1)
            meter.answered(usage, ["stop"], times)

    report("gateway", "request, its first response included", best_us(request, 5_000))
    cluster, state = Cluster([]), GatewayState([], True, 0.0, 0)

    def collect() -> Iterator[Metric]:
        yield from own_families(metrics, state, {"acme"})
        yield from vllm_families("model", metrics, cluster)

    exposition = Exposition(collect)
    for accept in ("", OPENMETRICS):
        text, content_type = asyncio.run(exposition.render(accept))
        cost = best_us(lambda accept=accept: asyncio.run(exposition.render(accept)), 20)  # type: ignore[misc]
        lines = len(text.splitlines())
        report("gateway", f"scrape, {content_type.partition(';')[0]}", cost, lines=lines, bytes=len(text))


def kvmanager() -> None:
    metrics = DriverMetrics()
    metrics.attached(EXECUTOR)
    for num_sequences in (1, 256, 1024):
        batch = StepBatch(1, row_sequence_ids=list(range(num_sequences)), row_num_tokens=[1] * num_sequences)
        batch.num_decodes = num_sequences

        def step(batch: StepBatch = batch) -> None:
            start = time.monotonic()
            metrics.sent(batch, time.monotonic() - start)
            start = time.monotonic()
            metrics.done(EXECUTOR, 0.005, time.monotonic() - start)

        report("kvmanager", "step", best_us(step, 20_000), sequences=num_sequences)


def executor() -> None:
    metrics = ExecutorMetrics()
    for num_sequences in (1, 256, 1024):
        rows = [1] * num_sequences
        cost = best_us(lambda rows=rows: metrics.step(0.005, rows), 5_000)  # type: ignore[misc]
        report("executor", "step", cost, sequences=num_sequences)


def report(service: str, what: str, cost: float, **details: int) -> None:
    print(json.dumps({"service": service, "what": what, **details, "cpu_us": cost}), flush=True)


if __name__ == "__main__":
    gateway()
    kvmanager()
    executor()
