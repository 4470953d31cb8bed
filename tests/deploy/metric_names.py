"""Names of metrics: those that docs/metrics.md lists, and those in PromQL."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]

OF_THE_COLLECTOR = {"span_calls_total": "counter", "span_duration_seconds": "histogram"}
"""What deploy/collector.yaml makes of spans, by its namespace and its unit."""

OF_EVERY_PROCESS = {"process_cpu_seconds_total": "counter", "process_resident_memory_bytes": "gauge"}

_ROW = re.compile(r"\| `((?:octavo_|vllm:)\w+)` \| (\w+) \|")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_NAME = re.compile(r"\b(?:(?:octavo|vllm|process)[_:]|span_calls|span_duration)[\w:]*")


@cache
def documented() -> dict[str, str]:
    """Types by name."""
    return dict(_ROW.findall((ROOT / "docs" / "metrics.md").read_text("utf-8")))


def names_in(promql: str) -> set[str]:
    """Metrics that an expression names, recorded ones too; those that a label `__name__` lists among them."""
    listed = re.findall(r'__name__=~"([^"]+)"', promql)
    return {*_NAME.findall(_STRING.sub('""', promql)), *(name for each in listed for name in each.split("|"))}


def is_sample(name: str, types: dict[str, str]) -> bool:
    """Whether a metric of these has samples of the name."""
    if types.get(name) not in (None, "histogram"):
        return True
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    return base != name and types.get(base) == "histogram"
