"""Sends requests when they are due, and notes what came when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from services.cli.bench.target import RequestFailed, Target, Usage
from services.cli.bench.workload import Request

_TICK_SECONDS = 0.02


@dataclass(slots=True)
class Record:
    """One request and its answer. Times are in seconds since the start of the load.

    Attributes:
        due: When it was to be sent, which is what its latencies count from.
        sent: When it was.
        arrivals: When responses came, and how many tokens each brought.
        ended: When it was over; None while it runs.
        error: Kind of failure; empty where there was none.
        message: What the failure said.
        prompt_tokens: As the server counted; None where it did not say.
        cached_tokens: Likewise.
    """

    index: int
    due: float
    sent: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    ended: float | None = None
    error: str = ""
    message: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None

    @property
    def succeeded(self) -> bool:
        return self.ended is not None and not self.error

    @property
    def output_tokens(self) -> int:
        return sum(tokens for _, tokens in self.arrivals)


class Load:
    """A load on one target.

    An open load sends each request when it is due, whatever became of the ones before. A closed one keeps so many
    requests under way.

    Args:
        clock: In seconds, monotonic.
        duration: Seconds after which nothing is sent any more; None: no limit.
        timeout: Seconds after which a request is given up; None: never.

    Attributes:
        records: Of all requests that were sent, in that order.
        tokens: That have arrived so far.
        running: Requests under way.
        done: Requests that are over, well or not.
        failed: Those that are not.
        lateness: How late the event loop was, each time that it was looked at, in seconds.
        interrupted: Whether it was stopped before its end.
    """

    def __init__(
        self,
        target: Target,
        clock: Callable[[], float],
        *,
        duration: float | None = None,
        timeout: float | None = None,
    ) -> None:
        self._target = target
        self._clock = clock
        self._duration = duration
        self._timeout = timeout
        self._start = clock()
        self._main: asyncio.Task[None] | None = None
        self.records: list[Record] = []
        self.tokens = 0
        self.running = 0
        self.done = 0
        self.failed = 0
        self.lateness: list[float] = []
        self.interrupted = False

    @property
    def seconds(self) -> float:
        """Since the start."""
        return self._clock() - self._start

    async def run(self, requests: Iterable[Request], concurrency: int | None = None) -> None:
        """Sends all requests and reads all answers.

        Args:
            concurrency: So many at a time; None: each when it is due.
        """
        self._start = self._clock()
        watch = asyncio.ensure_future(self._watch_lateness())
        send = self._send_when_due(iter(requests)) if concurrency is None else self._send_closed(requests, concurrency)
        self._main = asyncio.ensure_future(send)
        try:
            await self._main
        except asyncio.CancelledError:
            if not self.interrupted:
                raise
        finally:
            watch.cancel()

    def stop(self) -> None:
        """Ends what is under way; what there is stays."""
        self.interrupted = True
        if self._main is not None:
            self._main.cancel()

    async def _send_when_due(self, requests: Iterator[Request]) -> None:
        tasks: set[asyncio.Task[None]] = set()
        try:
            for request in requests:  # which is made here, before it is due
                assert request.due is not None, "an open load has times"
                if self._is_over(request.due):
                    break
                # At least once to the event loop, even where it is late: answers are read meanwhile.
                await asyncio.sleep(max(0.0, request.due - self.seconds))
                task = asyncio.ensure_future(self._send(request, request.due))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await _all(tasks)
        finally:
            await _end(tasks)

    async def _send_closed(self, requests: Iterable[Request], concurrency: int) -> None:
        left = iter(requests)

        async def work() -> None:
            for request in left:
                now = self.seconds
                if self._is_over(now):
                    return
                await self._send(request, now)

        tasks = {asyncio.ensure_future(work()) for _ in range(concurrency)}
        try:
            await _all(tasks)
        finally:
            await _end(tasks)

    def _is_over(self, seconds: float) -> bool:
        return self._duration is not None and seconds >= self._duration

    async def _send(self, request: Request, due: float) -> None:
        record = Record(request.index, due, self.seconds)
        self.records.append(record)
        self.running += 1

        def arrived(tokens: int) -> None:
            record.arrivals.append((self.seconds, tokens))
            self.tokens += tokens

        try:
            usage = await asyncio.wait_for(self._target.send(request, arrived), self._timeout)
            self._finish(record, usage)
        except RequestFailed as failure:
            record.error, record.message = failure.kind, str(failure)
        except (asyncio.TimeoutError, TimeoutError):
            record.error, record.message = "timeout", f"not complete within {self._timeout:g} s"
        except asyncio.CancelledError:
            record.error, record.message = "interrupted", "the load was ended"
            raise
        finally:
            record.ended = self.seconds
            self.running -= 1
            self.done += 1
            self.failed += bool(record.error)

    def _finish(self, record: Record, usage: Usage) -> None:
        record.prompt_tokens, record.cached_tokens = usage.prompt_tokens, usage.cached_tokens
        counted = usage.output_tokens
        if counted is not None and counted != record.output_tokens:
            self.tokens += counted - record.output_tokens
            record.arrivals = spread(record.arrivals or [(self.seconds, 0)], counted)

    async def _watch_lateness(self) -> None:
        while True:
            before = self._clock()
            await asyncio.sleep(_TICK_SECONDS)
            self.lateness.append(max(0.0, self._clock() - before - _TICK_SECONDS))


def spread(arrivals: list[tuple[float, int]], tokens: int) -> list[tuple[float, int]]:
    """The same times with so many tokens in all: one in the first response, which servers send at once, and the others
    over the later responses as evenly as whole numbers allow.

    Over HTTP nobody says how many tokens a response brings, only how many there were in all.
    """
    (first, _), later = arrivals[0], arrivals[1:]
    if not later:
        return [(first, tokens)]
    one, rest = min(tokens, 1), max(tokens - 1, 0)
    until = [rest * (number + 1) // len(later) for number in range(len(later))]
    parts = [end - begin for begin, end in zip([0, *until], until, strict=False)]
    return [(first, one), *((time, part) for (time, _), part in zip(later, parts, strict=True))]


async def _all(tasks: set[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.gather(*tasks)


async def _end(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
