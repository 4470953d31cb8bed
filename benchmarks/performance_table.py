"""Writes the comparison table of `docs/performance.md` from what `benchmarks.compare` printed: no figure is typed.

    python -m benchmarks.performance_table docs/performance.md RUN.jsonl...

Each file is the output of one run and becomes one row, in the order given.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- table: made by benchmarks.performance_table -->", "<!-- end of the table -->"

_LABELS = {
    "alpaca": "Alpaca-like, 64 at once",
    "sharegpt": "ShareGPT-like, 64 at once",
    "shared-prefix": "shared prefix, 64 at once",
    "single": "one stream",
    "ttft": "first token of 512, new / seen before, ms",
}


@dataclass(frozen=True)
class Run:
    """One run of `benchmarks.compare`: a summary for each system, Octavo's first, and how they compare."""

    summaries: list[dict[str, Any]]
    comparison: dict[str, Any]

    @property
    def label(self) -> str:
        quantized = self.comparison["system"].partition(" ")[2]
        return _LABELS[self.comparison["set"]] + (f", {quantized}" if quantized else "")

    def cell(self, column: str) -> str:
        """What a system did; a dash where it was not measured."""
        for summary in self.summaries:
            system, _, weights = summary["system"].partition(" ")
            if system == column:
                return _figures(summary) + (f", {weights}" if weights not in ("", "bf16") else "")
        return "-"

    @property
    def ratio(self) -> str:
        """Octavo over the best of the others; above 1 Octavo is the faster one."""
        peers = self.comparison["peers"]
        if self.comparison["set"] != "ttft":
            return f"{min(peer['ratio'] for peer in peers):.2f}"
        return " / ".join(f"{min(peer[key] for peer in peers):.2f}" for key in ("ttft_ratio", "cached_ttft_ratio"))


def read_run(lines: Sequence[str]) -> Run:
    """A run from the lines that it printed.

    Raises:
        ValueError: they end early.
    """
    printed = [json.loads(line) for line in lines if line.strip()]
    if not printed or "peers" not in printed[-1]:
        raise ValueError("the last line compares nothing: not the whole output of benchmarks.compare")
    return Run([line for line in printed if "rounds" in line], printed[-1])


def render(runs: Sequence[Run]) -> str:
    """The table, with start-up and memory over all runs, and what it was measured with."""
    columns: list[str] = []
    for run in runs:
        columns += [name for each in run.summaries if (name := each["system"].split()[0]) not in columns]
    rows = [
        ["output tokens/s (CPU s for 1,000)", *columns, "Octavo to the best other"],
        ["---"] * (len(columns) + 2),
        *([run.label, *(run.cell(column) for column in columns), run.ratio] for run in runs),
        ["start-up, s; peak memory, MB", *(_start_and_memory(runs, column) for column in columns), ""],
    ]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"{table}\n\n{_circumstances(runs, columns)}"


def replace_table(page: str, table: str) -> str:
    """The page with what stands between the two marks replaced.

    Raises:
        ValueError: it lacks a mark.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} with {END} after it")
    return f"{before}{begin}\n\n{table}\n\n{end}{after}"


def _figures(summary: dict[str, Any]) -> str:
    if summary["set"] == "ttft":
        return f"{summary['ttft_ms_p50']:.0f} / {summary['cached_ttft_ms_p50']:.0f}"
    return f"{summary['tokens_per_s']:.0f} ({summary['cpu_s_per_1k']:.1f})"


def _of(runs: Sequence[Run], column: str) -> list[dict[str, Any]]:
    return [each for run in runs for each in run.summaries if each["system"].split()[0] == column]


def _start_and_memory(runs: Sequence[Run], column: str) -> str:
    summaries = _of(runs, column)
    starts = sorted(each["start_s"] for each in summaries)
    return f"{starts[len(starts) // 2]:.1f}; {max(each['rss_mb'] for each in summaries):,.0f}"


def _circumstances(runs: Sequence[Run], columns: Sequence[str]) -> str:
    versions = ", ".join(f"{column} {_of(runs, column)[0]['version']}" for column in columns)
    kernels = sorted({f"{each['kernels']} in {each['dtype']}" for each in _of(runs, columns[0])})
    dates = sorted({run.comparison["date"] for run in runs})
    probes = [each["probe"] for run in runs for each in run.summaries]
    ranges = [
        f"{what} {min(each[key] for each in probes):.0f} to {max(each[key] for each in probes):.0f} {unit}"
        for key, what, unit in (
            ("read_gb_s_1", "memory read by one thread", "GB/s"),
            ("read_gb_s_2", "by two", "GB/s"),
            ("fp32_gflops_1", "float32 products on one thread", "GFLOP/s"),
            ("fp32_gflops_2", "on two", "GFLOP/s"),
        )
    ]
    return (
        f"Measured on {' and '.join(dates)}. Versions: {versions}. Octavo's kernels: {', '.join(kernels)}. "
        f"The machine meanwhile: {', '.join(ranges)}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path, help="Markdown file whose table is replaced")
    parser.add_argument("runs", type=Path, nargs="+", help="what benchmarks.compare printed, a file for each run")
    args = parser.parse_args()
    runs = [read_run(path.read_text().splitlines()) for path in args.runs]
    args.page.write_text(replace_table(args.page.read_text(), render(runs)))


if __name__ == "__main__":
    main()
