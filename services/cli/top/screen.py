"""What ``octavo top`` shows, for any size of terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.table import Table
from rich.text import Text

from octavo.v1 import monitoring_pb2 as pb
from services.cli.charts import parts_of, sparkline
from services.cli.output import some
from services.cli.top.history import Counter, History, averages
from services.cli.waterfall import format_seconds

_REFERENCED, _CACHED, _FREE = "█", "▓", "░"
_BAR_STYLES = ("cyan", "blue", "bright_black")
_STATES = {
    pb.REQUEST_STATE_RUNNING: ("running", "green"),
    pb.REQUEST_STATE_SWAPPED: ("swapped", "red"),
    pb.REQUEST_STATE_WAITING: ("waiting", "yellow"),
    pb.REQUEST_STATE_ENDED: ("ended", "bright_black"),
}
_LEAST_WIDTH = 60
# From here on there is room for more columns and numbers.
_WIDE = 110
_WIDEST = 150
# Of a table, beside its rows: an empty line, the heading, the names of columns. And the least in which two of them fit.
_TABLE_LINES = 3
_LEAST_BOTH = 9


class Order(Enum):
    """By what requests are sorted."""

    STATE = "state"
    AGE = "age"
    TOKENS = "tokens"
    TENANT = "tenant"


class Focus(Enum):
    """What gets the room that is left."""

    BOTH = "both"
    TENANTS = "tenants"
    REQUESTS = "requests"


@dataclass
class View:
    """All that is shown.

    Attributes:
        address: Of the gateway.
        status: None while nothing has come yet.
        trouble: What is wrong with the connection, in words.
    """

    address: str
    status: pb.Status | None = None
    model: str = ""
    requests: list[pb.RequestView] = field(default_factory=list)
    history: History = field(default_factory=History)
    order: Order = Order.STATE
    focus: Focus = Focus.BOTH
    trouble: str = ""

    def take(self, response: pb.WatchStatusResponse) -> None:
        """The next message of the stream."""
        self.history.add([*response.history, response.status])
        self.status = response.status
        self.model = response.status.model.name or self.model
        self.trouble = ""


def screen(view: View, width: int, height: int | None = None) -> RenderableType:
    """The whole picture.

    Args:
        width: Of the terminal.
        height: Of the terminal; None: as high as it takes.
    """
    width = max(width, _LEAST_WIDTH)
    lines = [_title(view, width)]
    if view.status is None:
        return Group(*lines)
    lines += [*_throughput(view.status, view.history, width), Text()]
    lines += _memory(view.status, width, None if height is None else max(2, height // 4))
    if height is None:
        return Group(*lines, *_tables(view, view.status, width, None))
    body = Group(*lines, *_tables(view, view.status, width, max(height - len(lines) - 1, 2)))
    layout = Layout()
    layout.split_column(Layout(body), Layout(_keys(view), size=1))
    return layout


# Top lines


def _title(view: View, width: int) -> Text:
    status = view.status
    title = Text.assemble(("octavo top", "bold"), f"  {view.model or 'no model'} on {view.address}  ")
    if view.trouble:
        title.append(view.trouble, "bold red")
    elif status is None:
        title.append("asking", "dim")
    elif not status.ready:
        title.append("no executor is there", "bold red")
    else:
        title.append("ready", "green")
    if status is not None and not view.trouble and not status.state_available:
        title.append("  state store away: durability is degraded", "yellow")
    if status is not None:
        clock = f"{status.time.ToDatetime():%H:%M:%S} UTC"
        title.truncate(max(width - len(clock) - 1, 0), overflow="ellipsis")
        title.append(clock.rjust(width - title.cell_len), "dim")
    return title


def _throughput(status: pb.Status, history: History, width: int) -> Iterator[Text]:
    yield _fit(
        Text.assemble(
            (f"{status.running_requests}", "bold green"),
            " running  ",
            (f"{status.waiting_requests}", "bold yellow" if status.waiting_requests else "bold"),
            " waiting  ",
            (f"{status.swapped_requests}", "bold red" if status.swapped_requests else "bold"),
            " swapped   batch of ",
            (f"{status.batch_sequences}", "bold"),
            ": ",
            (f"{status.batch_prefill_tokens}", "bold"),
            " prefill + ",
            (f"{status.batch_decode_tokens}", "bold"),
            " decode tokens",
        ),
        width,
    )
    for name, style, counter in (("in", "blue", _prompt_tokens), ("out", "cyan", _generated_tokens)):
        yield _rate_line(name, style, counter, history, width)
    hits = history.share(_cached_tokens, _prompt_tokens)
    waste = history.share(_wasted_slots, lambda counters: counters.slot_steps)
    sharing = history.share(lambda counters: counters.unshared_slot_steps, lambda counters: counters.slot_steps)
    counters = status.counters
    facts = [
        f"prefix hits {_percent(hits)}",
        f"preemptions {counters.preemptions} ({counters.preemptions_by_swap} by swap)",
    ]
    facts += [f"waste {_percent(waste)}"]
    facts += [f"sharing {sharing:.2f}x"] if sharing else []
    yield _fit(Text("   ".join(facts)), width)


def _rate_line(name: str, style: str, counter: Counter, history: History, width: int) -> Text:
    rate = history.rate(counter)
    value = "-" if rate is None else count(rate)
    text = Text.assemble(f"{name:<4}", (f"{value:>7}", "bold"), " tokens/s ")
    room = width - text.cell_len
    text.append(sparkline(averages(history.rates(counter), room), room), style)
    return text


def _prompt_tokens(counters: Any) -> float:
    return float(counters.prompt_tokens)


def _cached_tokens(counters: Any) -> float:
    return float(counters.cached_prompt_tokens)


def _generated_tokens(counters: Any) -> float:
    return float(counters.generated_tokens)


def _wasted_slots(counters: Any) -> float:
    return float(counters.reserved_slot_steps + counters.internal_slot_steps)


# Memory


def _memory(status: pb.Status, width: int, most: int | None) -> Iterator[Text]:
    """A bar for each executor and tier, under a legend."""
    legend = Text.assemble(("KV memory  ", "bold"))
    for mark, style, what in zip((_REFERENCED, _CACHED, _FREE), _BAR_STYLES, ("in use", "cached", "free"), strict=True):
        legend.append(mark, style).append(f" {what}  ")
    if status.model.block_size:
        legend.append(f" blocks of {status.model.block_size} tokens", "dim")
        legend.append(f", {_size(status.bytes_per_block)}" if status.bytes_per_block else "", "dim")
    yield _fit(legend, width)
    pools = [
        (f"{each.executor}{' (draining)' if each.draining else ''}" if tier == "device" else "", tier, pool)
        for each in status.executors
        for tier, pool in (("device", each.device), ("host", each.host))
        if pool.num_blocks
    ]
    shown = pools if most is None else pools[:most]
    names = max((len(name) for name, _, _ in shown), default=0)
    for name, tier, pool in shown:
        yield _pool_line(
            f"{name:<{min(names, width // 3)}.{width // 3}} {tier:<6} ", pool, status.bytes_per_block, width
        )
    if len(shown) < len(pools):
        yield Text(f"and {some(len(pools) - len(shown), 'more pool')}", "dim")


def _pool_line(name: str, pool: Any, bytes_per_block: int, width: int) -> Text:
    used, cached, blocks = pool.referenced_blocks, pool.cached_blocks, pool.num_blocks
    numbers = f" {_percent(used / blocks):>6}  {used} + {cached} of {blocks}"
    if width >= _WIDE and bytes_per_block:
        numbers += f"  ({_size(used * bytes_per_block)} of {_size(blocks * bytes_per_block)})"
    room = max(width - len(name) - max(len(numbers), 26), 8)
    sizes = parts_of(room, (used, cached), blocks)
    text = Text(name)
    for mark, style, size in zip((_REFERENCED, _CACHED, _FREE), _BAR_STYLES, (*sizes, room - sum(sizes)), strict=True):
        text.append(mark * size, style)
    return _fit(text.append(numbers), width)


# Tables


def _tables(view: View, status: pb.Status, width: int, height: int | None) -> Iterator[RenderableType]:
    """Tenants above requests, in so many lines at most, each with a title and a line of column names."""
    tenants, requests = list(status.tenants), sort_requests(view.requests, view.order)
    focus = view.focus
    if focus is Focus.BOTH and (not tenants or (height is not None and height < _LEAST_BOTH)):
        focus = Focus.REQUESTS
    tenant_rows, request_rows = _rows(height, focus, len(tenants), len(requests))
    if focus is not Focus.REQUESTS:
        yield Text()
        yield _heading("tenants", len(tenants), tenant_rows)
        yield _tenant_table(tenants[:tenant_rows], width)
    if focus is not Focus.TENANTS:
        yield Text()
        yield _heading(f"requests by {view.order.value}", len(requests), request_rows)
        yield _request_table(requests[:request_rows], status, width)


def _rows(height: int | None, focus: Focus, tenants: int, requests: int) -> tuple[int | None, int | None]:
    """How many tenants and requests fit. Tenants get a third, or what requests leave; requests get the rest."""
    if height is None:
        return None, None
    if focus is not Focus.BOTH:
        room = max(height - _TABLE_LINES, 1)
        return room, room
    room = height - 2 * _TABLE_LINES
    tenants = min(tenants, max(1, room // 3, room - requests))
    return tenants, room - tenants


def _heading(what: str, there: int, shown: int | None) -> Text:
    left = 0 if shown is None else max(there - shown, 0)
    return Text.assemble((what, "bold"), (f"  and {left} more" if left else "", "dim"))


def _tenant_table(tenants: Sequence[pb.TenantStatus], width: int) -> Table:
    swapped = ("swapped",) if width >= _WIDE else ()
    numbers = ("running", "waiting", *swapped, "blocks", "cached", "pinned", "reserved", "at most", "weight")
    table = _table(("tenant", "left"), *((name, "right") for name in numbers))
    table.expand = False
    for each in tenants:
        memory = each.memory
        table.add_row(
            memory.owner,
            str(each.running_requests),
            str(each.waiting_requests),
            *([str(each.swapped_requests)] if swapped else []),
            str(memory.charged_blocks),
            str(memory.cached_blocks),
            str(memory.pinned_blocks),
            str(memory.reserved_blocks or "-"),
            str(memory.max_blocks or "-"),
            f"{memory.weight:g}",
        )
    return table


def _request_table(requests: Sequence[pb.RequestView], status: pb.Status, width: int) -> Table:
    columns: list[tuple[str, Any]] = [("request", "left"), ("tenant", "left"), ("state", "left"), ("prompt", "right")]
    columns += [("cached", "right"), ("output", "right"), ("time", "right")]
    columns += [("preempted", "right"), ("executor", "left")] if width >= _WIDE else []
    table = _table(*columns)
    table.add_column("why", no_wrap=True, overflow="ellipsis", ratio=1)
    for each in requests:
        state, style = _STATES.get(each.state, ("?", ""))
        done = min(each.computed_tokens, each.prompt_tokens)
        is_prefill = each.state == pb.REQUEST_STATE_RUNNING and done < each.prompt_tokens
        cells: list[str | Text] = [
            each.request_id[: 12 if width < _WIDEST else 36],
            each.tenant[:16],
            Text(state, style),
            f"{done}/{each.prompt_tokens}" if is_prefill else str(each.prompt_tokens),
            str(each.cached_tokens),
            f"{each.output_tokens}/{each.max_tokens}" if each.max_tokens else str(each.output_tokens),
            format_seconds(age(each, status)),
        ]
        cells += [str(each.preemptions or "-"), each.executor] if width >= _WIDE else []
        table.add_row(*cells, each.reason)
    return table


def _table(*columns: tuple[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", expand=True)
    for name, side in columns:
        table.add_column(name, justify=side, no_wrap=True, overflow="ellipsis")
    return table


def sort_requests(requests: Sequence[pb.RequestView], order: Order) -> list[pb.RequestView]:
    """Those first that matter most by this order; then in the order of arrival."""
    keys: dict[Order, Callable[[pb.RequestView], Any]] = {
        Order.STATE: _by_state,
        Order.AGE: lambda each: (each.state == pb.REQUEST_STATE_ENDED, each.arrived.ToNanoseconds()),
        Order.TOKENS: lambda each: -(each.computed_tokens + each.output_tokens),
        Order.TENANT: lambda each: each.tenant,
    }
    return sorted(requests, key=keys[order])


def _by_state(request: pb.RequestView) -> tuple[int, int]:
    """In the order of `_STATES`; of those that have ended, the last ones first."""
    states = list(_STATES)
    rank = states.index(request.state) if request.state in states else len(states)
    return rank, -request.arrived.ToNanoseconds() if request.state == pb.REQUEST_STATE_ENDED else 0


def age(request: pb.RequestView, status: pb.Status) -> float:
    """Seconds since it arrived, or from then until it ended."""
    end = request.ended if request.HasField("ended") else status.time
    return max(0.0, (end.ToNanoseconds() - request.arrived.ToNanoseconds()) / 1e9)


def _keys(view: View) -> Text:
    text = Text(style="dim")
    for key, what in (("q", "leave"), ("s", "sort"), ("t", "tenants"), ("r", "requests"), ("b", "both")):
        is_on = what == view.focus.value
        text.append(f" {key} ", "reverse").append(f" {what}  ", "bold not dim" if is_on else "")
    return text


# Numbers


def count(number: float) -> str:
    """Such as 950, 12.3k or 4.56M."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if number >= 10 * size or (unit == "M" and number >= size):
            return f"{number / size:.1f}{unit}"
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _size(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _fit(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis")
    text.no_wrap = True
    return text
