"""Dashboards, rules and the collector's configuration: what they name is there."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import yaml

from tests.deploy.metric_names import OF_EVERY_PROCESS, OF_THE_COLLECTOR, ROOT, documented, is_sample, names_in

DEPLOY = ROOT / "deploy"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
RULES = [DEPLOY / "prometheus" / "recording.yml", DEPLOY / "prometheus" / "alerts.yml"]


def read(path: Any) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


@cache
def rules() -> list[dict[str, Any]]:
    return [rule for path in RULES for group in read(path)["groups"] for rule in group["rules"]]


def recorded() -> set[str]:
    return {rule["record"] for rule in rules() if "record" in rule}


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", [])


def expressions(dashboard: dict[str, Any]) -> list[str]:
    found = [target["expr"] for panel in panels(dashboard) for target in panel.get("targets", [])]
    for variable in dashboard["templating"]["list"]:
        found.append(re.sub(r"label_values\((.*), \w+\)", r"\1", variable["definition"]))
    return found


def check_names(promql: str) -> None:
    known = documented() | OF_THE_COLLECTOR | OF_EVERY_PROCESS
    names = names_in(promql) - recorded()
    assert {name for name in names if not is_sample(name, known)} == set(), promql


def test_names_are_found_in_promql() -> None:
    promql = 'sum by (le) (rate(octavo_a_bucket{reason="octavo_no"}[5m])) / octavo:b:c + {__name__=~"octavo_d|vllm:e"}'
    assert names_in(promql) == {"octavo_a_bucket", "octavo:b:c", "octavo_d", "vllm:e"}
    types = {"octavo_a": "histogram", "octavo_b_total": "counter"}
    assert is_sample("octavo_a_bucket", types)
    assert is_sample("octavo_b_total", types)
    assert not is_sample("octavo_a", types)
    assert not is_sample("octavo_b_sum", types)


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_shows_metrics_that_there_are(path: Any) -> None:
    dashboard = json.loads(path.read_text("utf-8"))
    found = expressions(dashboard)
    assert found
    for promql in found:
        assert names_in(promql) or "ALERTS" in promql, promql
        check_names(promql)


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_reads_what_is_provisioned(path: Any) -> None:
    dashboard = json.loads(path.read_text("utf-8"))
    sources = read(DEPLOY / "grafana" / "provisioning" / "datasources" / "octavo.yaml")["datasources"]
    uids = {source["uid"] for source in sources}
    used = {panel["datasource"]["uid"] for panel in panels(dashboard) if panel["type"] != "row"}
    assert used <= uids
    ids = Counter(panel["id"] for panel in panels(dashboard))
    assert max(ids.values()) == 1
    for panel in panels(dashboard):
        position = panel["gridPos"]
        assert position["x"] + position["w"] <= 24
        assert panel["title"]


def test_dashboards_have_names_of_their_own_and_examples_lead_to_traces() -> None:
    dashboards = [json.loads(path.read_text("utf-8")) for path in DASHBOARDS]
    assert {path.stem for path in DASHBOARDS} >= {"overview", "memory", "tenants"}
    assert len({each["uid"] for each in dashboards}) == len({each["title"] for each in dashboards}) == len(dashboards)
    sources = read(DEPLOY / "grafana" / "provisioning" / "datasources" / "octavo.yaml")["datasources"]
    by_uid = {source["uid"]: source for source in sources}
    (destination,) = by_uid["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert by_uid[destination["datasourceUid"]]["type"] == "jaeger"
    assert destination["name"] == "trace_id"
    overview = json.loads((DEPLOY / "grafana" / "dashboards" / "overview.json").read_text("utf-8"))
    assert any(target.get("exemplar") for panel in panels(overview) for target in panel.get("targets", []))


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("record") or rule.get("alert"))
def test_a_rule_reads_metrics_that_there_are(rule: dict[str, Any]) -> None:
    check_names(rule["expr"])


def test_every_alert_is_tried_silent_and_firing() -> None:
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    tried = [
        test for case in read(ROOT / "tests/deploy/rules_test.yml")["tests"] for test in case.get("alert_rule_test", [])
    ]
    assert {test["alertname"] for test in tried if "exp_alerts" in test} == alerts
    assert {test["alertname"] for test in tried if "exp_alerts" not in test} == alerts


def test_prometheus_finds_every_service_on_its_port() -> None:
    compose = read(ROOT / "docker-compose.yml")
    services = compose["services"]
    jobs = {job["job_name"]: job for job in read(DEPLOY / "prometheus" / "prometheus.yml")["scrape_configs"]}
    for name in ("gateway", "kvmanager", "executor"):
        (found,) = jobs[f"octavo-{name}"]["dns_sd_configs"]
        assert found["names"] == [name]
        assert str(found["port"]) == services[name]["environment"][f"OCTAVO_{name.upper()}_METRICS_PORT"]
        assert set(services[name]["networks"]) & set(services["prometheus"]["networks"])
    assert "--enable-feature=exemplar-storage" in services["prometheus"]["command"]


def test_the_collector_s_pipelines_are_of_parts_that_it_has_and_prometheus_reads_them() -> None:
    collector = read(DEPLOY / "collector.yaml")
    pipelines = collector["service"]["pipelines"]
    connectors = set(collector["connectors"])
    used: dict[str, set[str]] = {"receivers": set(), "processors": set(), "exporters": set()}
    for pipeline in pipelines.values():
        for kind, names in used.items():
            names.update(pipeline.get(kind, []))
    assert used["receivers"] == set(collector["receivers"]) | connectors
    assert used["exporters"] == set(collector["exporters"]) | connectors
    assert used["processors"] == set(collector["processors"])
    jobs = {job["job_name"]: job for job in read(DEPLOY / "prometheus" / "prometheus.yml")["scrape_configs"]}
    (spans,) = jobs["spans"]["static_configs"]
    assert spans["targets"] == [f"collector:{collector['exporters']['prometheus']['endpoint'].rpartition(':')[2]}"]
    reader = collector["service"]["telemetry"]["metrics"]["readers"][0]["pull"]["exporter"]["prometheus"]
    (own,) = jobs["collector"]["static_configs"]
    assert own["targets"] == [f"collector:{reader['port']}"]
    # Examples of spans exist in OpenMetrics only.
    assert collector["connectors"]["spanmetrics"]["exemplars"]["enabled"]
    assert collector["exporters"]["prometheus"]["enable_open_metrics"]
    assert collector["connectors"]["spanmetrics"]["namespace"] == "span"
    assert collector["connectors"]["spanmetrics"]["histogram"]["unit"] == "s"
