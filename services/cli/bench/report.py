"""What a person is shown of a load: a table and charts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from services.cli.bench.load import Record
from services.cli.bench.statistics import (
    Distribution,
    Summary,
    end_to_end,
    percentile,
    time_to_first_token,
    tokens_over_time,
)
from services.cli.charts import columns, counts_in_bins
from services.cli.output import some

_CHART_HEIGHT = 6
_CHART_WIDTH = 72
# Latencies beyond this percentile are in a histogram's last column: one straggler would make one column of the rest.
_HISTOGRAM_PERCENT = 99
# For so many values, so many characters a column.
_COLUMN_SIZES = ((2000, 1), (400, 2), (50, 4), (0, 6))
# A client that is later than this is part of what it measures.
_LATE_SECONDS = 0.01


def report(title: str, summary: Summary, records: Sequence[Record], width: int) -> RenderableType:
    """Table, charts, and what is to be known about both.

    Args:
        width: Of the terminal, in characters.
    """
    parts: list[RenderableType] = [Text(f"{title}\n", style="bold"), _latencies(summary), Text(), _totals(summary)]
    chart_width = max(20, min(width - 12, _CHART_WIDTH))
    good = [record for record in records if record.succeeded]
    for name, value in (("time to first token", time_to_first_token), ("end to end", end_to_end)):
        parts += _histogram(name, [each for record in good if (each := value(record)) is not None], chart_width)
    parts += _over_time(records, chart_width)
    parts += [Text(f"\n{warning}", style="yellow") for warning in warnings(summary)]
    return Group(*parts)


def warnings(summary: Summary) -> Iterator[str]:
    """Where the client itself is part of the figures."""
    lag, loop = summary.send_lag, summary.loop_lag
    if lag is not None and lag.p99 > _LATE_SECONDS:
        yield (
            f"This client fell behind: requests were sent up to {_time(lag.max)} late (p99 {_time(lag.p99)}). Latencies"
            " count from the time that they were due. Share the load among several clients."
        )
    elif loop is not None and loop.p99 > _LATE_SECONDS:
        yield (
            f"This client was busy: it read responses up to {_time(loop.max)} late (p99 {_time(loop.p99)}). Share the"
            " load among several clients."
        )


def save_svg(path: str, renderable: RenderableType) -> None:
    """Writes what is shown as an image."""
    import io

    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(renderable)
    console.save_svg(path, title="octavo bench")


def _latencies(summary: Summary) -> Table:
    table = Table(box=None, padding=(0, 0, 0, 2), pad_edge=False, header_style="dim")
    table.add_column(no_wrap=True)
    for name in ("mean", "p50", "p90", "p95", "p99", "max"):
        table.add_column(name, justify="right", no_wrap=True)
    rows: tuple[tuple[str, Distribution | None], ...] = (
        ("time to first token", summary.ttft),
        ("between tokens", summary.itl),
        ("per output token", summary.tpot),
        ("end to end", summary.e2e),
        ("normalized", summary.normalized),
    )
    for name, distribution in rows:
        values = ["-"] * 6 if distribution is None else [_time(value) for value in astuple(distribution)[1:]]
        table.add_row(name, *values)
    return table


def _totals(summary: Summary) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    for name, value in _total_rows(summary):
        table.add_row(name, value)
    return table


def _total_rows(summary: Summary) -> Iterator[tuple[str, str]]:
    done = f"{summary.succeeded} of {summary.requests} in {summary.seconds:.1f} s"
    yield "requests", f"{done}, {summary.requests_per_s:.2f}/s"
    yield "output tokens", _tokens(summary.output_tokens, summary.output_tokens_per_s, summary)
    if summary.prompt_tokens is not None and summary.prompt_tokens_per_s is not None:
        cached = ""
        if summary.cached_tokens is not None:
            share = summary.cached_tokens / summary.prompt_tokens if summary.prompt_tokens else 0.0
            cached = f"; {summary.cached_tokens} from the cache ({100 * share:.1f} %)"
        yield "prompt tokens", _tokens(summary.prompt_tokens, summary.prompt_tokens_per_s, summary) + cached
    if summary.goodput is not None:
        yield "goodput", f"{summary.goodput:.2f} requests/s: {summary.good_requests} kept every limit"
    if summary.errors:
        yield "errors", ", ".join(f"{count} {kind}" for kind, count in summary.errors.items())


def _tokens(tokens: int, rate: float, summary: Summary) -> str:
    return f"{tokens}, {rate:.1f}/s, {tokens / max(summary.succeeded, 1):.1f} a request"


def _histogram(name: str, values: Sequence[float], width: int) -> Iterator[RenderableType]:
    if len(values) < 2:
        return
    ordered = sorted(values)
    highest = percentile(ordered, _HISTOGRAM_PERCENT)
    # The fewer values, the wider the columns: else there is one for each value.
    column = next(size for least, size in _COLUMN_SIZES if len(ordered) >= least)
    counts = [count for count in counts_in_bins(ordered, width // column, highest) for _ in range(column)]
    yield _chart(f"{name}, {some(len(values), 'request')}", counts, "0", f"{_time(highest)} and more", str)


def _over_time(records: Sequence[Record], width: int) -> Iterator[RenderableType]:
    rates, part = tokens_over_time(records, width)
    if any(rates):
        yield _chart("output tokens/s over time", rates, "0", f"{part * width:.1f} s", lambda rate: f"{rate:.0f}")


def _chart(
    title: str, values: Sequence[float], first: str, last: str, label: Callable[[float], str] | type[str]
) -> Text:
    """Columns with a scale at the left and the ends of the axis below."""
    highest = max(values)
    scale = [label(highest), *[""] * (_CHART_HEIGHT - 2), "0"]
    margin = max(len(each) for each in scale)
    text = Text(f"\n{title}\n", style="bold")
    for mark, line in zip(scale, columns(values, _CHART_HEIGHT), strict=True):
        text.append(f"{mark:>{margin}} ", style="not bold dim")
        text.append(f"{line}\n", style="not bold cyan")
    gap = max(1, len(values) - len(first) - len(last))
    text.append(f"{'':{margin}} {first}{'':{gap}}{last}", style="not bold dim")
    return text


def _time(seconds: float) -> str:
    if abs(seconds) >= 1:
        return f"{seconds:.2f} s"
    return f"{1000 * seconds:.1f} ms" if abs(seconds) >= 0.001 else f"{1000 * seconds:.3f} ms"
