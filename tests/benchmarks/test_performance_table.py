"""The comparison table: figures come from runs, the ratio is that to the best other system."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.performance_table import BEGIN, END, read_run, render, replace_table

_PROBE = {"read_gb_s_1": 16.0, "read_gb_s_2": 31.0, "fp32_gflops_1": 150.0, "fp32_gflops_2": 290.0}


def summary(name: str, system: str, **figures: Any) -> dict[str, Any]:
    facts = {"set": name, "system": system, "rounds": 3, "version": "1.2", "start_s": 2.0, "rss_mb": 1500}
    if system.startswith("octavo"):
        facts |= {"kernels": "avx512", "dtype": "bfloat16"}
    return facts | {"probe": _PROBE} | figures


def printed(*lines: dict[str, Any]) -> list[str]:
    return [json.dumps(line) for line in lines]


def alpaca(system: str, tokens_per_s: float) -> dict[str, Any]:
    return summary("alpaca", system, tokens_per_s=tokens_per_s, cpu_s_per_1k=4.4)


def comparison(name: str, system: str, *peers: dict[str, Any]) -> dict[str, Any]:
    return {"set": name, "system": system, "date": "2026-11-30", "peers": list(peers)}


ALPACA = printed(
    {"set": "alpaca", "system": "octavo", "round": 0},
    alpaca("octavo", 430.2),
    alpaca("vllm bf16", 280.0),
    alpaca("llama q4", 190.0),
    comparison("alpaca", "octavo", {"system": "vllm bf16", "ratio": 1.54}, {"system": "llama q4", "ratio": 2.26}),
)
TTFT = printed(
    summary("ttft", "octavo int8", ttft_ms_p50=149.6, cached_ttft_ms_p50=18.7, rss_mb=2345),
    summary("ttft", "vllm bf16", ttft_ms_p50=160.0, cached_ttft_ms_p50=70.0),
    comparison("ttft", "octavo int8", {"system": "vllm bf16", "ttft_ratio": 1.07, "cached_ttft_ratio": 3.74}),
)


def test_a_row_for_each_run() -> None:
    lines = render([read_run(ALPACA), read_run(TTFT)]).splitlines()
    assert lines[0] == "| output tokens/s (CPU s for 1,000) | octavo | vllm | llama | Octavo to the best other |"
    assert lines[2] == "| Alpaca-like, 64 at once | 430 (4.4) | 280 (4.4) | 190 (4.4), q4 | 1.54 |"
    assert lines[3].startswith("| first token of 512, new / seen before, ms, int8 | 150 / 19, int8 | 160 / 70 | - |")
    assert lines[3].endswith("| 1.07 / 3.74 |")
    assert lines[4] == "| start-up, s; peak memory, MB | 2.0; 2,345 | 2.0; 1,500 | 2.0; 1,500 |  |"
    assert "2026-11-30" in lines[-1]
    assert "octavo 1.2, vllm 1.2, llama 1.2" in lines[-1]
    assert "avx512 in bfloat16" in lines[-1]


def test_the_table_replaces_the_one_before() -> None:
    page = f"# Performance\n\n{BEGIN}\n\nold\n\n{END}\n\nMore.\n"
    changed = replace_table(page, "new")
    assert changed == page.replace("old", "new")
    assert replace_table(changed, "new") == changed


@pytest.mark.parametrize("page", ["# Performance\n", f"{BEGIN}\n", f"{END}\n{BEGIN}\n"])
def test_a_page_without_the_marks(page: str) -> None:
    with pytest.raises(ValueError, match="the page has no <!-- table"):
        replace_table(page, "new")


def test_a_run_that_broke_off() -> None:
    with pytest.raises(ValueError, match="not the whole output"):
        read_run(ALPACA[:-1])
