"""A real Prometheus scrapes a real stack."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.metric_names import ROOT, documented
from tests.ports import free_port
from tests.services.e2e.processes import Processes, eventually
from tests.services.e2e.prometheus import Prometheus
from tests.services.e2e.stack import Stack, make_executor

PROGRAM = shutil.which("prometheus")
PROMTOOL = shutil.which("promtool")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="there is no prometheus (Debian has it in the package prometheus)"),
]

JOBS = ("octavo-gateway", "octavo-kvmanager", "octavo-executor")

EMPTY_PANELS = {"Alerts", "Why requests are not answered", "Requests that a limit kept out"}
"""Of dashboards, while all is well."""

NOT_BEFORE_IT_HAPPENS = {"octavo_gateway_limit_refusals_total"}


@pytest.fixture(scope="module")
def scraped(
    processes: Processes, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Stack, Prometheus]]:
    """A stack, and a Prometheus that scrapes its three ports, and the gateway's HTTP port as one from outside does."""
    assert PROGRAM is not None
    folder = tmp_path_factory.mktemp("prometheus")
    ports = {job: free_port() for job in JOBS}
    http_port = free_port()
    executor = make_executor(processes, model, metrics_port=ports["octavo-executor"])
    stack = Stack(
        processes,
        model,
        executor,
        gateway={"metrics_port": ports["octavo-gateway"], "http_port": http_port},
        kvmanager={"metrics_port": ports["octavo-kvmanager"]},
    )
    stack.start()
    # From here on all series are there: what comes is seen to come.
    stack.caller.generate("the first", max_tokens=2, ignore_eos=True)
    targets = {**ports, "from-outside": http_port}
    jobs = {name: {"static_configs": [{"targets": [f"127.0.0.1:{port}"]}]} for name, port in targets.items()}
    prometheus = Prometheus(processes, PROGRAM, folder, jobs)
    prometheus.start()
    yield stack, prometheus
    prometheus.kill()
    stack.close()
    executor.kill()


def named(names: set[str]) -> set[str]:
    """Which of our metrics they are, by what these are called in the documentation."""
    return {base(name) for name in names if name.startswith(("octavo_", "vllm"))}


def base(name: str) -> str:
    """The metric that a sample belongs to."""
    stem = re.sub(r"_(bucket|sum|count)$", "", name)
    return stem if documented().get(stem) == "histogram" else name


def test_all_that_is_documented_is_scraped_and_nothing_else(scraped: tuple[Stack, Prometheus]) -> None:
    stack, prometheus = scraped
    trace_id = secrets.token_hex(16)
    traced = {"traceparent": f"00-{trace_id}-{secrets.token_hex(8)}-01"}
    untraced_id = secrets.token_hex(16)
    for metadata in (traced, {"traceparent": f"00-{untraced_id}-{secrets.token_hex(8)}-00"}, None):
        stack.caller.generate("what was asked before " * 4, max_tokens=24, ignore_eos=True, n=2, metadata=metadata)
    prometheus.wait_for('octavo_gateway_requests_total{job="octavo-gateway"}', lambda found: found == 4)

    types = documented()
    for job in JOBS:
        prefixes = (job.replace("-", "_"), *(["vllm:"] if job == JOBS[0] else []))
        expected = {name for name in types if name.startswith(prefixes)} - NOT_BEFORE_IT_HAPPENS
        prometheus.wait_for_names(job, lambda found: named(found) >= expected)  # noqa: B023
        assert named(prometheus.names(job)) == expected
    seen = prometheus.types()
    for name, kind in types.items():
        if name not in NOT_BEFORE_IT_HAPPENS:
            found = seen.get(name) or seen.get(name.removesuffix("_total")) or seen.get(name.removesuffix("_info"))
            assert found == kind, name
    assert named(prometheus.names("from-outside")) == named(prometheus.names(JOBS[0]))

    for promql, value in {
        'vllm:request_success_total{job="octavo-gateway",finished_reason="length"}': 4,
        'vllm:generation_tokens_total{job="octavo-gateway",model_name="tiny",engine="0"}': 2 + 3 * 2 * 24,
        'vllm:time_to_first_token_seconds_count{job="octavo-gateway"}': 4,
        'vllm:e2e_request_latency_seconds_bucket{job="octavo-gateway",le="+Inf"}': 4,
        'vllm:inter_token_latency_seconds_count{job="octavo-gateway"}': 1 + 3 * 2 * 23,
        'vllm:request_params_n_sum{job="octavo-gateway"}': 7,
        'vllm:num_requests_running{job="octavo-gateway"}': 0,
        'octavo_gateway_requests_total{job="octavo-gateway",protocol="grpc",outcome="ok",reason="length"}': 4,
        'octavo_kvmanager_leader{job="octavo-kvmanager"}': 1,
        'sum(octavo_kvmanager_blocks{tier="device"}) - scalar(octavo_executor_blocks{tier="device"})': 0,
    }.items():
        prometheus.wait_for(promql, lambda found: found == value)  # noqa: B023
    for promql in (
        'vllm:prefix_cache_hits_total{job="octavo-gateway"}',
        'vllm:prefix_cache_queries_total{job="octavo-gateway"}',
        'vllm:iteration_tokens_total_sum{job="octavo-gateway"}',
        'vllm:request_prefill_time_seconds_sum{job="octavo-gateway"}',
        'vllm:request_decode_time_seconds_sum{job="octavo-gateway"}',
        'octavo_executor_step_seconds_count{job="octavo-executor"}',
        'octavo_executor_tokens_total{job="octavo-executor",phase="decode"}',
        'octavo_kvmanager_slot_steps_total{job="octavo-kvmanager",use="used"}',
        "octavo_kvmanager_copied_blocks_total",
    ):
        prometheus.wait_for(promql, lambda found: found > 0)

    for name in ("time_to_first_token_seconds", "inter_token_seconds", "request_seconds"):
        labels = prometheus.exemplars(f'octavo_gateway_{name}_bucket{{job="octavo-gateway"}}')
        assert {each["trace_id"] for each in labels} == {trace_id}, name
    labels = prometheus.exemplars('vllm:time_to_first_token_seconds_bucket{job="octavo-gateway"}')
    assert {each["trace_id"] for each in labels} == {trace_id}


@pytest.mark.skipif(PROMTOOL is None, reason="there is no promtool (Debian has it in the package prometheus)")
def test_protocols_are_told_apart(scraped: tuple[Stack, Prometheus]) -> None:
    stack, prometheus = scraped
    body = json.dumps({"model": "tiny", "prompt": "hello", "max_tokens": 3}).encode()
    url, headers = f"http://{stack.gateway.http_address}/v1/completions", {"content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as answer:
        assert answer.status == 200
    prometheus.wait_for(
        'octavo_gateway_requests_total{job="octavo-gateway",protocol="openai",outcome="ok"}', lambda found: found == 1
    )


def test_names_are_such_as_prometheus_wants_them(scraped: tuple[Stack, Prometheus]) -> None:
    """Those of vLLM are as they are."""
    assert PROMTOOL is not None
    _, prometheus = scraped
    for url in prometheus.targets():
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read()
        done = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, timeout=60)
        complaints = [line for line in (done.stdout + done.stderr).decode().splitlines() if line]
        assert [line for line in complaints if not line.startswith("vllm:")] == []


@pytest.mark.parametrize("name", ["overview", "memory", "tenants"])
def test_every_panel_of_a_dashboard_shows_something(scraped: tuple[Stack, Prometheus], name: str) -> None:
    _, prometheus = scraped
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "dashboards" / f"{name}.json").read_text("utf-8"))
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            promql = target["expr"].replace("$__rate_interval", "1m").replace("$__range", "1m").replace("$tenant", ".*")
            if panel["title"] not in EMPTY_PANELS:
                eventually(lambda: prometheus.query(promql), what=f"{panel['title']}: {promql}")  # noqa: B023
            else:
                prometheus.query(promql)


def test_rules_are_evaluated_and_an_alert_fires_when_the_kv_manager_is_gone(scraped: tuple[Stack, Prometheus]) -> None:
    stack, prometheus = scraped
    prometheus.wait_for("octavo:memory_referenced:ratio", lambda found: found == 0)
    eventually(lambda: prometheus.query("octavo:generated_tokens:rate5m"), what="a recorded rate")
    # So few tokens waste more of their blocks than an alert lets pass; nothing else is wrong.
    eventually(lambda: not prometheus.query('ALERTS{alertname!="OctavoMemoryWaste"}'), what="no alert, pending or not")
    stack.kvmanager.kill()
    eventually(
        lambda: prometheus.query('ALERTS{alertname="OctavoServiceDown",job="octavo-kvmanager"}'), what="an alert"
    )
    prometheus.wait_for('octavo_gateway_kvmanager_attached{job="octavo-gateway"}', lambda found: found == 0)
    assert not prometheus.query('vllm:num_requests_running{job="octavo-gateway"}')
    prometheus.wait_for('vllm:prefix_cache_queries_total{job="octavo-gateway"}', lambda found: found > 0)
