"""Many clients that ask all the time, and a judge who looks at every answer."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc

from octavo.client import AsyncClient, OctavoError, RetryPolicy
from tests.chaos.workload import Case, difference
from tests.services.e2e.calls import Answer

NUM_CLIENTS = 32

PATIENCE = RetryPolicy(start_patience=90.0, patience=90.0)

_SHARE_WITH_TIMEOUT = 0.1
_MOST_SECONDS = 120.0
"""What takes longer than this is lost."""

_MOST_PROBLEMS = 20


class Crowd:
    """The clients.

    Args:
        gateways: Addresses; half of the clients prefer the last one.
        cases: What they ask for.
        seed: Of who asks for what.

    Attributes:
        counts: Requests and tokens by what became of them.
        kinds: Requests by kind.
        problems: What was wrong, first ones first.
        longest_pause: Seconds that a client waited for the next response, or the first.
    """

    def __init__(self, gateways: Sequence[str], cases: Sequence[Case], seed: int) -> None:
        self._gateways = list(gateways)
        self._cases = cases
        self._seed = seed
        self._stopping = asyncio.Event()
        self.counts: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.problems: list[str] = []
        self.longest_pause = 0.0

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """They ask for the time of a block; after it each gets the rest of its last answer."""
        counter = _RetryCounter(self.counts)
        logger = logging.getLogger("octavo.client")
        logger.addHandler(counter)
        level, logger.propagate = logger.level, False
        logger.setLevel(logging.INFO)
        clients = [asyncio.create_task(self._client(number)) for number in range(NUM_CLIENTS)]
        try:
            yield
            self._stopping.set()
            await asyncio.gather(*clients)
        finally:
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
            logger.removeHandler(counter)
            logger.setLevel(level)
            logger.propagate = True

    async def _client(self, number: int) -> None:
        rng = random.Random(f"{self._seed} {number}")
        addresses = self._gateways if number % 2 else self._gateways[::-1]
        async with AsyncClient(addresses, retry=PATIENCE) as client:
            while not self._stopping.is_set():
                case = rng.choice(self._cases)
                timeout = rng.uniform(0.3, 3.0) if rng.random() < _SHARE_WITH_TIMEOUT else None
                await self._ask(client, case, timeout)

    async def _ask(self, client: AsyncClient, case: Case, timeout: float | None) -> None:
        self.counts["requests"] += 1
        self.kinds[case.kind] += 1
        answer = Answer()
        began = time.monotonic()
        try:
            await asyncio.wait_for(self._read(client, case, timeout, answer), _MOST_SECONDS)
        except OctavoError as error:
            seconds = time.monotonic() - began
            if timeout is not None and error.status is grpc.StatusCode.DEADLINE_EXCEEDED and seconds >= timeout:
                self.counts["deadlines"] += 1
                self._judge(case, answer, difference(case, answer, partial=True))
            else:
                self._judge(case, answer, f"{error!r} after {seconds:.2f} s of {timeout}")
        except asyncio.TimeoutError:
            self._judge(case, answer, f"no end within {_MOST_SECONDS:g} s")
        except AssertionError as error:
            self._judge(case, answer, str(error))
        else:
            self.counts["answered"] += 1
            self._judge(case, answer, difference(case, answer))

    async def _read(self, client: AsyncClient, case: Case, timeout: float | None, answer: Answer) -> None:
        last = time.monotonic()
        async for response in case.send(client, timeout):
            now = time.monotonic()
            self.longest_pause = max(self.longest_pause, now - last)
            last = now
            answer.add(response)

    def _judge(self, case: Case, answer: Answer, problem: str) -> None:
        self.counts["tokens"] += sum(len(each.token_ids) for each in answer.sequences.values())
        if not problem:
            return
        self.counts["problems"] += 1
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(f"{case.kind} {case.options} {answer.request_id}: {problem}")


class _RetryCounter(logging.Handler):
    """Counts what the clients do to get over failures."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self._counts = counts

    def emit(self, record: logging.LogRecord) -> None:
        words = record.getMessage().split(" ", 1)
        what = {"resuming": "resumes", "repeating": "repeats", "trying": "retries"}[words[0]]
        self._counts[what] += 1
        if what != "retries" and not words[1].endswith("[]"):
            self._counts[f"{what}_in_the_middle"] += 1
