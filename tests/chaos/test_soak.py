"""Ten thousand requests through a real gateway and a real KV manager, whose memory does not grow."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from octavo.client import AsyncClient
from tests.oracle import VOCAB_SIZE, expected_output
from tests.services.e2e.calls import Answer
from tests.services.e2e.processes import Processes, Server
from tests.services.e2e.stack import MODEL_NAME, memory_of
from tests.services.kvmanager.oracle_service import OracleService

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

NUM_REQUESTS = 10_000
NUM_LONG_REQUESTS = 600
"""Before those: the KV manager keeps its last events for those who ask for them, and these fill that up."""

NUM_CLIENTS = 48
SAMPLE_EVERY = 100
"""Requests between two looks at the processes' memory."""

LOG_SECONDS = 2
"""The gateway, which has no other store, keeps the answers of so many seconds."""

MAY_GROW_BYTES = 4 * 2**20
END_TOKEN = 1
"""What ends a sequence of the model whose tokenizer the gateway has."""


@dataclass(frozen=True)
class Request:
    prompt: list[int]
    seed: int
    n: int
    max_tokens: int
    ignore_eos: bool
    leaves_after: int | None
    """Responses after which the client leaves; None: it stays."""

    def expected(self) -> list[list[int]]:
        stop = frozenset() if self.ignore_eos else frozenset({END_TOKEN})
        return [expected_output(self.prompt, self.seed, index, self.max_tokens, stop) for index in range(self.n)]


def short_requests(rng: random.Random) -> Iterator[Request]:
    """Different ones, of which many begin alike."""
    prefixes = [_tokens(rng, rng.randint(4, 60)) for _ in range(20)]
    for _ in range(NUM_REQUESTS):
        prefix = rng.choice(prefixes) if rng.random() < 0.7 else []
        yield Request(
            prefix + _tokens(rng, rng.randint(1, 20)),
            seed=rng.randrange(2**32),
            n=2 if rng.random() < 0.1 else 1,
            max_tokens=rng.randint(1, 12),
            ignore_eos=rng.random() < 0.5,
            leaves_after=rng.randint(1, 3) if rng.random() < 0.03 else None,
        )


def long_requests(rng: random.Random) -> Iterator[Request]:
    """They fill many blocks, and push others out."""
    for seed in range(NUM_LONG_REQUESTS):
        yield Request(_tokens(rng, 300), seed, n=1, max_tokens=2, ignore_eos=True, leaves_after=None)


def _tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(2, VOCAB_SIZE) for _ in range(count)]


@dataclass
class Memory:
    """Resident bytes of the processes, by name."""

    processes: list[Server]
    samples: dict[str, list[int]] = field(default_factory=dict)

    def sample(self) -> None:
        for process in self.processes:
            pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
            self.samples.setdefault(process.name, []).append(pages * 4096)

    def growth(self) -> dict[str, int]:
        """From the middle of the first third to that of the last."""
        grown = {}
        for name, samples in self.samples.items():
            third = len(samples) // 3
            grown[name] = round(statistics.median(samples[-third:]) - statistics.median(samples[:third]))
        return grown


@asynccontextmanager
async def services(processes: Processes, model: Path) -> AsyncIterator[tuple[Server, Server, OracleService]]:
    """Gateway, KV manager, and the oracle in this process."""
    oracle = OracleService(num_blocks=400)
    await oracle.start()
    kvmanager = processes.octavo("kvmanager", executors=oracle.address, drain_seconds=5)
    settings = {"model": model, "model_name": MODEL_NAME, "token_log_seconds": LOG_SECONDS, "drain_seconds": 5}
    gateway = processes.octavo("gateway", kvmanager=kvmanager.address, **settings)
    try:
        for process in (kvmanager, gateway):
            process.start()
        await asyncio.to_thread(gateway.wait_until_serving)
        yield gateway, kvmanager, oracle
    finally:
        for process in (gateway, kvmanager):
            process.kill()
        await oracle.kill()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc to read the memory of processes from")
async def test_memory_stays_flat_over_ten_thousand_requests(processes: Processes, model: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}", flush=True)
    rng = random.Random(seed)
    problems: list[str] = []
    async with services(processes, model) as (gateway, kvmanager, oracle), AsyncClient(gateway.address) as client:
        await ask_all(client, long_requests(rng), problems, oracle.batches.clear)
        memory = Memory([gateway, kvmanager])
        done = itertools.count(1)

        def after_each() -> None:
            oracle.batches.clear()
            if next(done) % SAMPLE_EVERY == 0:
                memory.sample()

        began = time.monotonic()
        await ask_all(client, short_requests(rng), problems, after_each)
        seconds = time.monotonic() - began
        assert problems == []
        assert oracle.problems == []
        await idle(kvmanager.address)
    assert next(done) == NUM_REQUESTS + 1
    grown = memory.growth()
    summary = {"requests": NUM_REQUESTS, "seconds": round(seconds, 1), "grown_bytes": grown, "seed": seed}
    print(json.dumps(summary), flush=True)
    assert all(growth <= MAY_GROW_BYTES for growth in grown.values()), (grown, memory.samples)


async def ask_all(
    client: AsyncClient, requests: Iterator[Request], problems: list[str], after_each: Callable[[], None]
) -> None:
    """Several clients share the requests."""

    async def ask() -> None:
        for request in requests:
            await send(client, request, problems)
            after_each()

    await asyncio.gather(*(ask() for _ in range(NUM_CLIENTS)))


async def send(client: AsyncClient, request: Request, problems: list[str]) -> None:
    answer = Answer()
    responses = client.generate(
        request.prompt,
        seed=request.seed,
        n=request.n,
        max_tokens=request.max_tokens,
        ignore_eos=request.ignore_eos,
        temperature=1.0,
    )
    number = 0
    async for response in responses:
        answer.add(response)
        number += 1
        if number == request.leaves_after:
            await responses.aclose()  # type: ignore[attr-defined]
            break
    expected = request.expected()
    got = answer.sequences
    if request.leaves_after is None:
        right = answer.complete and answer.all_token_ids() == expected
    else:
        right = all(expected[index][: len(each.token_ids)] == each.token_ids for index, each in got.items())
    if not right and len(problems) < 10:
        problems.append(f"{request}: {got}, expected {expected}")


async def idle(kvmanager: str) -> None:
    """Returns when no request and no referenced block is left."""
    for _ in range(300):
        memory = await asyncio.to_thread(memory_of, kvmanager)
        assert memory.free_blocks + memory.cached_blocks + memory.referenced_blocks == memory.num_blocks
        if not (memory.referenced_blocks or memory.running_requests or memory.waiting_requests):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"left behind: {memory}")
