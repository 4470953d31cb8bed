"""A request's life as a waterfall: one line for each decision, with a bar where it was in time."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from octavo.v1 import monitoring_pb2 as pb
from services.cli.output import some
from services.cli.timeline import Life, Phase, Row

STYLES = {Phase.QUEUE: "yellow", Phase.PREFILL: "blue", Phase.DECODE: "green", Phase.PREEMPTED: "red"}

_STATES = {
    pb.REQUEST_STATE_WAITING: "waits",
    pb.REQUEST_STATE_RUNNING: "runs",
    pb.REQUEST_STATE_SWAPPED: "is swapped out",
    pb.REQUEST_STATE_ENDED: "ended",
}
_LEAST_BAR, _MOST_BAR = 16, 60
_WORDS = 46
# With more of its life in the queue than this, so much of the queue is shown, as a part of the rest.
_LONG_QUEUE = 0.6
_SHOWN_QUEUE = 0.25


def waterfall(timeline: pb.Timeline, life: Life, width: int) -> RenderableType:
    """Who it was, totals, and every decision.

    Args:
        width: Of the terminal, in characters.
    """
    parts: list[RenderableType] = [*_headlines(timeline), Text(), _totals(life), Text(), _rows(life, width)]
    if timeline.decisions_left_out:
        parts.append(Text(f"\n{some(timeline.decisions_left_out, 'prefill chunk')} in the middle left out", "dim"))
    return Group(*parts)


def describe_state(request: pb.RequestView) -> str:
    """Where it stands and why, such as ``waits: no free blocks``."""
    state = _STATES.get(request.state, "is unknown")
    return f"{state}: {request.reason}" if request.reason else state


def format_seconds(seconds: float) -> str:
    """With a unit that suits it, three digits or so."""
    if seconds < 1:
        return f"{1000 * seconds:.1f} ms" if seconds < 0.1 else f"{1000 * seconds:.0f} ms"
    if seconds < 100:
        return f"{seconds:.2f} s"
    return f"{int(seconds // 60)}m{int(seconds % 60):02}s"


def _headlines(timeline: pb.Timeline) -> Iterator[Text]:
    request = timeline.request
    head = Text.assemble("request ", (request.request_id, "bold"), f" of tenant {request.tenant or '-'} ")
    yield head.append(describe_state(request), style="bold")
    most = f" of at most {request.max_tokens}" if request.max_tokens else ""
    facts = [
        f"{some(request.prompt_tokens, 'prompt token')}, {request.cached_tokens} of them cached",
        f"{some(request.output_tokens, 'output token')}{most}",
    ]
    facts += [some(request.preemptions, "preemption")] if request.preemptions else []
    facts += [f"priority {request.priority}"] if request.priority else []
    facts += [f"on {request.executor}"] if request.executor else []
    yield Text("; ".join(facts))


def _totals(life: Life) -> Text:
    text = Text(f"{format_seconds(life.end)} in all: ")
    parts = [(phase, seconds) for phase, seconds in life.seconds.items() if seconds > 0 or phase is not Phase.PREEMPTED]
    for number, (phase, seconds) in enumerate(parts):
        share = f" ({100 * seconds / life.end:.0f} %)" if life.end else ""
        text.append(", " if number else "")
        text.append("■ ", style=STYLES[phase])
        text.append(f"{phase.value} {format_seconds(seconds)}{share}")
    return text


def _rows(life: Life, width: int) -> Table:
    steps = any(row.step for row in life.rows)
    start = _axis_start(life)
    bar = max(_LEAST_BAR, min(_MOST_BAR, width - _WORDS - 20 - 8 * steps))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("at", justify="right", no_wrap=True)
    table.add_column("took", justify="right", no_wrap=True)
    if steps:
        table.add_column("step", justify="right", no_wrap=True)
    table.add_column("what", ratio=1, min_width=20)
    table.add_column(_axis(start, life.end, bar), width=bar, no_wrap=True)
    for row in life.rows:
        took = "" if row.until is None else format_seconds(row.until - row.at)
        cells = [_moment(row.at, life.end), took, *([str(row.step or "")] if steps else []), row.what]
        table.add_row(*cells, _bar(row, start, life.end, bar))
    return table


def _axis_start(life: Life) -> float:
    """Where the bars begin: a long wait in the queue would leave nothing to be seen of what came after."""
    queue = life.seconds[Phase.QUEUE]
    rest = life.end - queue
    return queue - _SHOWN_QUEUE * rest if rest > 0 and queue > _LONG_QUEUE * life.end else 0.0


def _axis(start: float, end: float, width: int) -> str:
    first, last = _moment(start, end), _moment(end, end)
    return f"{first}{last:>{width - len(first)}}"


def _bar(row: Row, start: float, end: float, width: int) -> Text:
    """Where it was, with at least one character; what was before the start is at the left edge."""
    scale = width / (end - start) if end > start else 0.0
    left = min(max(int((row.at - start) * scale), 0), width - 1)
    if row.until is None or row.phase is None:
        return Text(" " * left + "╵", style="dim")
    length = max(1, min(round((row.until - start) * scale), width) - left)
    return Text(" " * left + "█" * length, style=STYLES[row.phase])


def _moment(seconds: float, end: float) -> str:
    """A time within a life of this length, such that times close to each other can be told apart."""
    return f"{seconds:.3f} s" if end >= 1 else f"{1000 * seconds:.1f} ms"
