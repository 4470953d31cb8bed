"""What a person sees while a load runs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from services.cli.bench.load import Load

_INTERVAL_SECONDS = 0.25
_WINDOW_SECONDS = 2.0


@asynccontextmanager
async def shown(load: Load, total: int | None, console: Console) -> AsyncIterator[None]:
    """A bar with the rates of the last seconds, for the time of a block; nothing where nobody looks.

    Args:
        total: Requests there will be; None: unknown.
    """
    if not console.is_terminal:
        yield
        return
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=total)

        async def follow() -> None:
            window: deque[tuple[float, int, int]] = deque([(load.seconds, load.done, load.tokens)])
            while True:
                await asyncio.sleep(_INTERVAL_SECONDS)
                window.append((load.seconds, load.done, load.tokens))
                while window[-1][0] - window[0][0] > _WINDOW_SECONDS:
                    window.popleft()
                bar.update(task, completed=load.done, description=_describe(load, window))
                bar.refresh()

        following = asyncio.ensure_future(follow())
        try:
            yield
        finally:
            following.cancel()


def _describe(load: Load, window: deque[tuple[float, int, int]]) -> str:
    (start, done, tokens), (now, all_done, all_tokens) = window[0], window[-1]
    seconds = max(now - start, 1e-9)
    failed = f", {load.failed} failed" if load.failed else ""
    rates = f"{(all_done - done) / seconds:.1f} requests/s, {(all_tokens - tokens) / seconds:.0f} tokens/s"
    return f"{load.running} running{failed}, {rates}"
