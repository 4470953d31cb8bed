"""What a person sees while a load runs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from services.cli.bench.load import Load

_INTERVAL_SECONDS = 0.25
_WINDOW_SECONDS = 2.0


@asynccontextmanager
async def shown(load: Load, total: int | None, console: Console, duration: float | None = None) -> AsyncIterator[None]:
    """A bar with the rates of the last seconds, for the time of a block; nothing where nobody looks.

    Args:
        total: Requests there will be; None: unknown.
        duration: Seconds for which requests are sent; the bar goes by them where there is no total.
    """
    if not console.is_terminal:
        yield
        return
    columns = (BarColumn(bar_width=20), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=duration if total is None else total)

        async def follow() -> None:
            window: deque[tuple[float, int, int]] = deque([(load.seconds, load.done, load.tokens)])
            while True:
                await asyncio.sleep(_INTERVAL_SECONDS)
                window.append((load.seconds, load.done, load.tokens))
                while window[-1][0] - window[0][0] > _WINDOW_SECONDS:
                    window.popleft()
                done = load.seconds if total is None else load.done
                bar.update(task, completed=done, description=_describe(load, total, window))
                bar.refresh()

        following = asyncio.ensure_future(follow())
        try:
            yield
        finally:
            following.cancel()


def _describe(load: Load, total: int | None, window: deque[tuple[float, int, int]]) -> str:
    (start, done, tokens), (now, all_done, all_tokens) = window[0], window[-1]
    seconds = max(now - start, 1e-9)
    counts = f"{load.done} of {total} done" if total is not None else f"{load.done} done"
    counts += f", {load.failed} failed" if load.failed else ""
    rates = f"{(all_done - done) / seconds:.1f} requests/s, {(all_tokens - tokens) / seconds:.0f} tokens/s"
    return f"{counts}, {load.running} running, {rates}"
