"""Metrics as text: what each version of Prometheus that asks for it gets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from services.telemetry.histogram import Exemplar, Histogram
from services.telemetry.metrics import Exposition, Metrics

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"

PROMETHEUS_2_42 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3_5 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
ESCAPING = PROMETHEUS_3_5.replace("allow-utf-8", "underscores")
CLASSIC = "text/plain;version=0.0.4"

NAMES = {
    "vllm:prompt_tokens_total",
    "vllm:num_requests_running",
    "vllm:ttft_seconds_bucket",
    "vllm:ttft_seconds_sum",
    "vllm:ttft_seconds_count",
    "vllm:iteration_tokens_total_bucket",
    "vllm:iteration_tokens_total_sum",
    "vllm:iteration_tokens_total_count",
    "vllm:cache_config_info",
}


def collect() -> Iterator[Metric]:
    metrics = Metrics("vllm:", {"model_name": 'a "model"\n', "engine": "0"})
    histogram = Histogram([0.1, 1.0])
    histogram.observe(0.05, 3)
    histogram.observe(0.5, exemplar=Exemplar(TRACE_ID, 0.5, 1700000000.25))
    histogram.observe(7.0)
    yield metrics.counter("prompt_tokens", "Tokens.", 5)
    yield metrics.gauge("num_requests_running", "Requests.", 2)
    yield metrics.histogram("ttft_seconds", "Time.", histogram)
    yield metrics.histogram("iteration_tokens_total", "Tokens of a step.", Histogram([1, 8]))
    yield metrics.info("cache_config", "Memory.", {"block_size": "16"})


async def rendered(accept: str) -> tuple[str, str]:
    body, content_type = await Exposition(collect).render(accept)
    return body.decode(), content_type


def shown(families: Iterator[Metric]) -> dict[str, float]:
    """Values by name and bucket."""
    samples = [sample for family in families for sample in family.samples]
    return {sample.name + sample.labels.get("le", ""): sample.value for sample in samples}


@pytest.mark.parametrize("accept", [PROMETHEUS_2_42, PROMETHEUS_3_5, ESCAPING])
async def test_openmetrics_with_colons_and_exemplars(accept: str) -> None:
    text, content_type = await rendered(accept)
    assert content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    values = shown(parse_openmetrics(text))
    assert values["vllm:ttft_seconds_bucket0.1"] == 3
    assert values["vllm:ttft_seconds_bucket1.0"] == 4
    assert values["vllm:ttft_seconds_bucket+Inf"] == values["vllm:ttft_seconds_count"] == 5
    assert values["vllm:ttft_seconds_sum"] == pytest.approx(7.65)
    exemplars = [
        sample.exemplar
        for family in parse_openmetrics(text)
        for sample in family.samples
        if sample.exemplar is not None
    ]
    (exemplar,) = exemplars
    assert (exemplar.labels, exemplar.value, float(exemplar.timestamp)) == ({"trace_id": TRACE_ID}, 0.5, 1700000000.25)


@pytest.mark.parametrize("accept", ["", "*/*", CLASSIC, "text/html", "text/plain;version=1.0.0;escaping=allow-utf-8"])
async def test_classic_text_for_all_others(accept: str) -> None:
    text, content_type = await rendered(accept)
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert "trace_id" not in text
    assert shown(parse_text(text))["vllm:ttft_seconds_bucket1.0"] == 4


@pytest.mark.parametrize("accept", [PROMETHEUS_2_42, PROMETHEUS_3_5, ESCAPING, CLASSIC])
async def test_names_as_they_are_whatever_was_asked_for(accept: str) -> None:
    text, _ = await rendered(accept)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    names = {line.partition("{")[0].partition(" ")[0] for line in lines}
    assert {name for name in names if name.startswith("vllm")} == NAMES
    assert "process_resident_memory_bytes" in names
    assert not any(name.endswith("_created") for name in names)
    (running,) = [line for line in lines if line.startswith("vllm:num_requests_running")]
    assert running == 'vllm:num_requests_running{engine="0",model_name="a \\"model\\"\\n"} 2.0'


async def test_others_are_asked_before_each_scrape() -> None:
    asked = []

    async def ask() -> None:
        asked.append(len(asked))

    def collect() -> Iterator[Metric]:
        yield Metrics("", {}).gauge("asked", "How often.", len(asked))

    exposition = Exposition(collect, ask)
    assert b"\nasked 1.0\n" in (await exposition.render(""))[0]
    assert b"\nasked 2.0\n" in (await exposition.render(""))[0]


def test_histograms_add_up() -> None:
    one, other = Histogram([1, 2]), Histogram([1, 2])
    one.observe(1, 2)
    other.observe(2)
    other.observe(5, 3)
    one.add_counts(other.counts, other.total)
    assert (list(one.counts), one.total) == ([2, 1, 3], 19.0)
    assert [bucket.observations for bucket in one.buckets()] == [2, 3, 6]
