"""Metrics in Prometheus's terms, made of plain numbers when they are asked for, and their text.

The services count with plain attributes, which costs next to nothing; only a scrape makes metric families of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.samples import Exemplar as ExemplarSample
from prometheus_client.utils import floatToGoString

from services.telemetry.histogram import Bucket, Histogram

Labels: TypeAlias = "Mapping[str, str]"


@dataclass(frozen=True)
class Metrics:
    """Makes metric families whose samples all have some labels in common.

    Args:
        prefix: Of every name.
        common: Labels of every sample.
    """

    prefix: str
    common: Labels

    def counter(self, name: str, documentation: str, value: float) -> Metric:
        """What only grows. Its sample's name ends in ``_total``."""
        return self.counters(name, documentation, (), {(): value})

    def counters(
        self, name: str, documentation: str, labels: Sequence[str], values: Mapping[tuple[str, ...], float]
    ) -> Metric:
        """Likewise, by the values of further labels."""
        family = CounterMetricFamily(self.prefix + name, documentation, labels=self._names(labels))
        for key, value in values.items():
            family.add_metric(self._values(key), value)
        return family

    def gauge(self, name: str, documentation: str, value: float) -> Metric:
        """What goes up and down."""
        return self.gauges(name, documentation, (), {(): value})

    def gauges(
        self, name: str, documentation: str, labels: Sequence[str], values: Mapping[tuple[str, ...], float]
    ) -> Metric:
        """Likewise, by the values of further labels."""
        family = GaugeMetricFamily(self.prefix + name, documentation, labels=self._names(labels))
        for key, value in values.items():
            family.add_metric(self._values(key), value)
        return family

    def histogram(self, name: str, documentation: str, histogram: Histogram) -> Metric:
        """A distribution."""
        return self.histograms(name, documentation, (), {(): histogram})

    def histograms(
        self, name: str, documentation: str, labels: Sequence[str], values: Mapping[tuple[str, ...], Histogram]
    ) -> Metric:
        """Likewise, by the values of further labels."""
        family = HistogramMetricFamily(self.prefix + name, documentation, labels=self._names(labels))
        for key, histogram in values.items():
            buckets = [_bucket(bucket) for bucket in histogram.buckets()]
            family.add_metric(self._values(key), buckets, histogram.total)
        return family

    def info(self, name: str, documentation: str, labels: Labels) -> Metric:
        """What doesn't change. Its sample's name ends in ``_info``."""
        family = InfoMetricFamily(self.prefix + name, documentation, labels=self._names(()))
        family.add_metric(self._values(()), dict(labels))
        return family

    def _names(self, labels: Sequence[str]) -> list[str]:
        return [*self.common, *labels]

    def _values(self, key: tuple[str, ...]) -> list[str]:
        return [*self.common.values(), *key]


def _bucket(bucket: Bucket) -> tuple[str, float] | tuple[str, float, ExemplarSample]:
    bound = floatToGoString(bucket.bound)  # type: ignore[no-untyped-call]
    if bucket.exemplar is None:
        return bound, bucket.observations
    exemplar = bucket.exemplar
    return bound, bucket.observations, ExemplarSample({"trace_id": exemplar.trace_id}, exemplar.value, exemplar.time)


class _Source:
    """Metric families as a registry wants them."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()


async def _nothing_to_ask() -> None:
    pass


class Exposition:
    """What one process shows to Prometheus: its own metrics, and those of any process.

    Args:
        collect: Its own metrics, as they are now.
        refresh: Asks others, before each scrape, for what `collect` tells of them.
    """

    def __init__(
        self, collect: Callable[[], Iterable[Metric]], refresh: Callable[[], Awaitable[None]] = _nothing_to_ask
    ) -> None:
        self._refresh = refresh
        self._registry = CollectorRegistry()
        self._registry.register(_Source(collect))
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    async def render(self, accept: str) -> tuple[bytes, str]:
        """The metrics as text.

        Args:
            accept: The header of that name. Exemplars are only in OpenMetrics, which Prometheus asks for.

        Returns:
            The text, and its content type.
        """
        await self._refresh()
        # All names are such that no version of Prometheus needs them escaped. The library would take the colon in
        # ``vllm:`` for something to be escaped, unless it is told that nothing is.
        if _takes_openmetrics(accept):
            text: bytes = openmetrics.generate_latest(self._registry, openmetrics.ALLOWUTF8)  # type: ignore[no-untyped-call]
            return text, openmetrics.CONTENT_TYPE_LATEST
        return generate_latest(self._registry, escaping=openmetrics.ALLOWUTF8), CONTENT_TYPE_PLAIN_0_0_4


def _takes_openmetrics(accept: str) -> bool:
    """Whoever takes it prefers it."""
    return any(each.partition(";")[0].strip() == "application/openmetrics-text" for each in accept.split(","))
