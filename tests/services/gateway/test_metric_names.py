"""The gateway's metrics by name, and what they say of the stack behind it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc
from prometheus_client.core import Metric

from octavo.v1 import kvmanager_pb2, memory_pb2
from services.gateway.metrics.calls import CallMetrics
from services.gateway.metrics.cluster import Cluster
from services.gateway.metrics.own_names import OTHERS, GatewayState, GroupState, own_families
from services.gateway.metrics.vllm_names import vllm_families
from services.rpc.status import RpcError

STATE = GatewayState([GroupState("one", True, True, 3), GroupState("1", False, False, 0)], True, 0.5, 2)

EXPECTED_OF_VLLM = {
    "cache_config_info",
    "e2e_request_latency_seconds",
    "generation_tokens_total",
    "gpu_cache_usage_perc",
    "inter_token_latency_seconds",
    "iteration_tokens_total",
    "kv_cache_usage_perc",
    "num_preemptions_total",
    "num_requests_running",
    "num_requests_swapped",
    "num_requests_waiting",
    "prefix_cache_hits_total",
    "prefix_cache_queries_total",
    "prompt_tokens_total",
    "request_decode_time_seconds",
    "request_generation_tokens",
    "request_inference_time_seconds",
    "request_max_num_generation_tokens",
    "request_params_max_tokens",
    "request_params_n",
    "request_prefill_time_seconds",
    "request_prompt_tokens",
    "request_queue_time_seconds",
    "request_success_total",
    "request_time_per_output_token_seconds",
    "time_per_output_token_seconds",
    "time_to_first_token_seconds",
}


class ScriptedLink:
    """A KV manager that says what it is told to; None: nothing."""

    def __init__(self, answer: kvmanager_pb2.GetMemoryMapResponse | None = None) -> None:
        self.answer = answer
        self.open = True

    async def ask(self, call: Callable[[Any], Awaitable[Any]]) -> Any:
        assert self.open, "it would wait for a KV manager"
        if self.answer is None:
            raise RpcError(grpc.StatusCode.UNAVAILABLE, "away", "BACKEND_UNAVAILABLE")
        return self.answer


def memory_map(**counters: int) -> kvmanager_pb2.GetMemoryMapResponse:
    host = memory_pb2.PoolState(num_blocks=50)
    return kvmanager_pb2.GetMemoryMapResponse(
        block_size=16,
        num_blocks=100,
        referenced_blocks=40,
        bytes_per_block=10,
        running_requests=3,
        waiting_requests=2,
        swapped_requests=1,
        counters=memory_pb2.MemoryCounters(**counters),
        executors=[memory_pb2.ExecutorMemory(executor="a", host=host)],
        step_tokens=kvmanager_pb2.StepTokens(counts=[0, 2] + [0] * 12, total=10),
    )


def samples(families: Iterable[Metric]) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Values by name and labels."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def of_vllm(calls: CallMetrics, cluster: Cluster) -> dict[str, float]:
    """Values of samples that there is one of."""
    found = samples(vllm_families("tiny", calls, cluster))
    return {name.removeprefix("vllm:"): next(iter(values.values())) for name, values in found.items()}


async def test_the_names_that_dashboards_made_for_vllm_read() -> None:
    cluster = Cluster([ScriptedLink(memory_map())])
    await cluster.refresh()
    found = samples(vllm_families("tiny", CallMetrics(), cluster))
    names = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in found}
    assert names == {f"vllm:{name}" for name in EXPECTED_OF_VLLM}
    for values in found.values():
        for labels in values:
            assert dict(labels)["model_name"] == "tiny"
            assert dict(labels)["engine"] == "0"


async def test_groups_are_added_up() -> None:
    links = [ScriptedLink(memory_map(prompt_tokens=10)), ScriptedLink(memory_map(prompt_tokens=5, preemptions=1))]
    cluster = Cluster(links)
    await cluster.refresh()
    values = of_vllm(CallMetrics(), cluster)
    assert (values["num_requests_running"], values["num_requests_waiting"], values["num_requests_swapped"]) == (6, 4, 2)
    assert values["kv_cache_usage_perc"] == values["gpu_cache_usage_perc"] == 0.4
    assert (values["prefix_cache_queries_total"], values["num_preemptions_total"]) == (15, 1)
    assert (values["iteration_tokens_total_count"], values["iteration_tokens_total_sum"]) == (4, 20)
    (labels,) = samples(vllm_families("tiny", CallMetrics(), cluster))["vllm:cache_config_info"]
    assert dict(labels).items() >= {"block_size": "16", "num_gpu_blocks": "200", "num_cpu_blocks": "100"}.items()


async def test_counters_go_on_when_another_kv_manager_takes_over() -> None:
    link = ScriptedLink(memory_map(prompt_tokens=100, cached_prompt_tokens=60, preemptions=2))
    cluster = Cluster([link])
    for prompt_tokens, cached, total in ((100, 60, 100), (120, 60, 120), (7, 3, 127), (7, 3, 127)):
        link.answer = memory_map(prompt_tokens=prompt_tokens, cached_prompt_tokens=cached)
        await cluster.refresh()
        assert of_vllm(CallMetrics(), cluster)["prefix_cache_queries_total"] == total
    assert of_vllm(CallMetrics(), cluster)["prefix_cache_hits_total"] == 63


async def test_without_a_kv_manager_nothing_is_said_of_its_load_and_counters_stand_still() -> None:
    link, away = ScriptedLink(memory_map(prompt_tokens=100)), ScriptedLink()
    cluster = Cluster([link, away])
    await cluster.refresh()
    assert of_vllm(CallMetrics(), cluster)["num_requests_running"] == 3
    link.open = False
    await cluster.refresh()
    values = of_vllm(CallMetrics(), cluster)
    assert "num_requests_running" not in values
    assert "kv_cache_usage_perc" not in values
    assert values["prefix_cache_queries_total"] == 100
    link.open = True
    await cluster.refresh()
    assert of_vllm(CallMetrics(), cluster)["prefix_cache_queries_total"] == 100


def test_requests_by_vllm_s_reasons() -> None:
    calls = CallMetrics()
    for outcome, reason, count in (
        ("ok", "stop", 1),
        ("ok", "length", 2),
        ("ok", "mixed", 4),
        ("cancelled", "CANCELLED", 8),
        ("failed", "INTERNAL", 16),
        ("refused", "QUEUE_FULL", 32),
        ("moved", "DRAINING", 64),
    ):
        calls.ended["grpc", "generate", outcome, reason] = count
    calls.ended["grpc", "pin", "ok", ""] = 128
    found = samples(vllm_families("tiny", calls, Cluster([])))["vllm:request_success_total"]
    by_reason = {dict(labels)["finished_reason"]: count for labels, count in found.items()}
    assert by_reason == {"stop": 5, "length": 2, "abort": 8, "error": 48}


def test_only_known_tenants_have_series_of_their_own() -> None:
    calls = CallMetrics()
    for number in range(1000):
        calls.generated_tokens[f"stranger-{number}"] = 2
        calls.refused[f"stranger-{number}", "TENANT_LIMIT"] = 1
    calls.generated_tokens["acme"] = 7
    found = samples(own_families(calls, STATE, {"acme"}))
    tokens = found["octavo_gateway_generated_tokens_total"]
    assert tokens == {(("tenant", "acme"),): 7, (("tenant", OTHERS),): 2000}
    assert found["octavo_gateway_limit_refusals_total"] == {(("reason", "TENANT_LIMIT"), ("tenant", OTHERS)): 1000}


def test_how_the_gateway_is() -> None:
    found = samples(own_families(CallMetrics(), STATE, ()))
    assert found["octavo_gateway_kvmanager_attached"] == {(("group", "one"),): 1, (("group", "1"),): 0}
    assert found["octavo_gateway_group_requests"] == {(("group", "one"),): 3, (("group", "1"),): 0}
    assert found["octavo_gateway_state_available"] == {(): 1}
    assert found["octavo_gateway_token_log_lag_seconds"] == {(): 0.5}
