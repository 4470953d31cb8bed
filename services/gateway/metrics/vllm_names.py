"""Metrics under the names that vLLM gives them, which its dashboards and the Gateway API inference extension read.

What is one engine to them is all that this gateway reaches.

Source: https://docs.vllm.ai/en/stable/usage/metrics/ and
https://github.com/kubernetes-sigs/gateway-api-inference-extension/tree/main/docs/proposals/003-model-server-protocol
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from prometheus_client.core import Metric

from services.gateway.metrics.calls import CallMetrics, Outcome
from services.gateway.metrics.cluster import Cluster, MemoryMap
from services.telemetry.metrics import Metrics

_FINISHED = {Outcome.CANCELLED.value: "abort", Outcome.REFUSED.value: "error", Outcome.FAILED.value: "error"}
"""vLLM's reasons for requests that were not answered. It does not know the others."""

_FINISH_REASONS = ("stop", "length", "abort", "error")


def vllm_families(model_name: str, calls: CallMetrics, cluster: Cluster) -> Iterator[Metric]:
    """All of them, as they are now. Where no KV manager answers, there are none of its metrics that go up and down."""
    metrics = Metrics("vllm:", {"model_name": model_name, "engine": "0"})
    if cluster.maps:
        yield from _scheduler(metrics, cluster.maps)
    yield from _engine_totals(metrics, calls, cluster)
    yield from _requests(metrics, calls)


def _scheduler(metrics: Metrics, maps: Sequence[MemoryMap]) -> Iterator[Metric]:
    running = sum(each.running_requests for each in maps)
    waiting = sum(each.waiting_requests for each in maps)
    swapped = sum(each.swapped_requests for each in maps)
    num_blocks = sum(each.num_blocks for each in maps)
    referenced = sum(each.referenced_blocks for each in maps)
    usage = referenced / num_blocks if num_blocks else 0.0
    host = [executor.host for each in maps for executor in each.executors]
    num_host_blocks = sum(pool.num_blocks for pool in host)
    yield metrics.gauge("num_requests_running", "Requests that run.", running)
    yield metrics.gauge("num_requests_waiting", "Requests that wait, preempted ones among them.", waiting)
    yield metrics.gauge("num_requests_swapped", "Requests that wait and have their blocks in host memory.", swapped)
    for name in ("kv_cache_usage_perc", "gpu_cache_usage_perc"):
        yield metrics.gauge(name, "Share of blocks that are in use: 1 is all of them.", usage)
    config = {
        "block_size": str(maps[0].block_size),
        "num_gpu_blocks": str(num_blocks),
        "num_cpu_blocks": str(num_host_blocks),
        "kv_cache_memory_bytes": str(sum(each.num_blocks * each.bytes_per_block for each in maps)),
    }
    yield metrics.info("cache_config", "Key/value memory of all executors together.", config)


def _engine_totals(metrics: Metrics, calls: CallMetrics, cluster: Cluster) -> Iterator[Metric]:
    totals = cluster.totals
    yield metrics.counter("num_preemptions", "Requests that gave their blocks back.", totals["preemptions"])
    yield metrics.counter(
        "prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", totals["prompt_tokens"]
    )
    yield metrics.counter(
        "prefix_cache_hits", "Prompt tokens found in the prefix cache.", totals["cached_prompt_tokens"]
    )
    yield metrics.histogram("iteration_tokens_total", "Tokens of a step.", cluster.step_tokens)
    yield metrics.counter("prompt_tokens", "Prompt tokens of this gateway's requests.", calls.prompt_tokens.total())
    yield metrics.counter("generation_tokens", "Tokens that this gateway handed out.", calls.generated_tokens.total())


def _requests(metrics: Metrics, calls: CallMetrics) -> Iterator[Metric]:
    yield metrics.counters(
        "request_success",
        "Requests that ended, by reason.",
        ["finished_reason"],
        {(reason,): count for reason, count in _finished(calls).items()},
    )
    for name, documentation, histogram in (
        ("time_to_first_token_seconds", "Time to first token.", calls.time_to_first_token),
        ("inter_token_latency_seconds", "Time between tokens of a sequence.", calls.inter_token),
        ("time_per_output_token_seconds", "Time between tokens of a sequence, by its older name.", calls.inter_token),
        (
            "request_time_per_output_token_seconds",
            "Time between tokens, the mean of each request.",
            calls.time_per_output_token,
        ),
        ("e2e_request_latency_seconds", "Time of a whole request.", calls.request_time),
        ("request_queue_time_seconds", "Time before a request was first admitted.", calls.queue_time),
        ("request_prefill_time_seconds", "Time from a request's admission to its first token.", calls.prefill_time),
        ("request_decode_time_seconds", "Time from a request's first token to its end.", calls.decode_time),
        ("request_inference_time_seconds", "Time of a request's prefill and decode together.", calls.inference_time),
        ("request_prompt_tokens", "Prompt tokens of a request.", calls.request_prompt_tokens),
        ("request_generation_tokens", "Tokens that a request was answered.", calls.request_generated_tokens),
        ("request_max_num_generation_tokens", "Tokens of a request's longest sequence.", calls.longest_sequence),
        ("request_params_n", "Sequences that a request asked for.", calls.sequences),
        ("request_params_max_tokens", "Most tokens that a request asked for, where it said.", calls.max_tokens),
    ):
        yield metrics.histogram(name, documentation, histogram)


def _finished(calls: CallMetrics) -> Counter[str]:
    """Requests by vLLM's finish reasons. One whose sequences ended for different reasons stopped."""
    finished: Counter[str] = Counter(dict.fromkeys(_FINISH_REASONS, 0))
    for (_, kind, outcome, reason), count in calls.ended.items():
        if kind == "pin":
            continue
        if outcome == Outcome.OK.value:
            finished[reason if reason in _FINISH_REASONS else "stop"] += count
        elif outcome in _FINISHED:
            finished[_FINISHED[outcome]] += count
    return finished
