"""What a KV manager shows to Prometheus."""

from __future__ import annotations

import httpx
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from services.kvmanager.metrics import DriverMetrics
from tests.ports import free_port
from tests.services.kvmanager.conftest import MakeRig
from tests.services.kvmanager.oracle_service import OracleService

Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def scraped(port: int) -> Values:
    """Values by name and labels."""
    async with httpx.AsyncClient() as client:
        accept = {"accept": "application/openmetrics-text;version=1.0.0"}
        answer = await client.get(f"http://127.0.0.1:{port}/metrics", headers=accept)
    families = text_string_to_metric_families(answer.text)
    samples = [sample for family in families for sample in family.samples]
    return {
        (each.name.removeprefix("octavo_kvmanager_"), tuple(sorted(each.labels.items()))): each.value
        for each in samples
    }


def of(values: Values, name: str, **labels: str) -> float:
    return values[name, tuple(sorted(labels.items()))]


async def test_a_request_s_way_and_what_it_left_behind(make_rig: MakeRig) -> None:
    port, executor = free_port(), OracleService(num_blocks=40, num_host_blocks=8)
    rig = await make_rig(executor, metrics_port=port, tenants="acme:reserved=3,max=30")
    reply = await rig.gateway.generate([1, 2, 3, 4, 5, 6, 7, 8, 9], tenant="acme", max_tokens=9)
    await rig.when_idle()
    values = await scraped(port)
    assert of(values, "leader") == of(values, "serving") == of(values, "executors") == of(values, "gateways") == 1
    assert of(values, "tokens_total", phase="prefill") == 9
    assert of(values, "tokens_total", phase="decode") == 8
    assert of(values, "generated_tokens_total") == 9
    assert of(values, "step_tokens_count") == of(values, "step_sequences_sum") == 9
    assert of(values, "executor_step_seconds_count", executor=executor.address) >= 9
    assert of(values, "requests_total", reason="ANSWERED") == of(values, "queue_seconds_count") == 1
    by_state = {
        state: of(values, "blocks", executor=executor.address, tier="device", state=state)
        for state in ("free", "cached", "referenced")
    }
    assert sum(by_state.values()) == 40
    assert by_state["referenced"] == 0
    assert of(values, "tenant_blocks", tenant="acme", state="cached") == by_state["cached"] > 0
    assert of(values, "tenant_quota_blocks", tenant="acme", limit="reserved") == 3
    assert of(values, "tenant_quota_blocks", tenant="acme", limit="max") == 30
    assert of(values, "slot_steps_total", use="external") == 0
    assert of(values, "slot_steps_total", use="used") > 0
    assert of(values, "prefix_cache_queried_tokens_total") == 9

    times = reply.end.times if reply.end is not None else None
    assert times is not None
    assert times.prefill_us > 0
    total = (times.prefill_us + times.decode_us) / 1e6
    assert abs(of(values, "request_seconds_total", state="running") - total) < 1e-5

    steps = (await rig.memory_map()).step_tokens
    assert (sum(steps.counts), steps.total) == (9, 17)


async def test_refusals_and_an_executor_that_is_lost(make_rig: MakeRig) -> None:
    port, executor = free_port(), OracleService()
    rig = await make_rig(executor, metrics_port=port)
    await rig.gateway.generate([1] * 1000)
    await executor.kill()
    await rig.eventually(lambda: not rig.manager.replicas, "the executor is lost")
    values = await scraped(port)
    assert of(values, "requests_total", reason="INVALID_REQUEST") == 1
    assert of(values, "executors_lost_total") == of(values, "executors_attached_total") == 1
    assert of(values, "executors") == of(values, "serving") == 0
    assert not [name for name, labels in values if dict(labels).get("executor") == executor.address]


async def test_owners_beyond_the_largest_hundred_are_shown_together(make_rig: MakeRig) -> None:
    port = free_port()
    rig = await make_rig(OracleService(num_blocks=300), metrics_port=port)
    for number in range(120):
        await rig.gateway.generate([number % 40, number // 40, 1, 2, 3], tenant=f"tenant-{number}", max_tokens=1)
    values = await scraped(port)
    owners = {dict(labels)["tenant"] for name, labels in values if name == "tenant_blocks"}
    assert len(owners) == 101
    assert of(values, "tenant_blocks", tenant="(others)", state="cached") == 20


def test_a_stall() -> None:
    metrics = DriverMetrics()
    metrics.stall(True)
    assert (metrics.stalls, metrics.stalled) == (1, True)
    metrics.stall(False)
    assert (metrics.stalls, metrics.stalled) == (1, False)
