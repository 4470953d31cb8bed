"""Ten thousand requests through a real gateway and a real KV manager, whose memory does not grow."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import AsyncIterator
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
NUM_CLIENTS = 48
SAMPLE_EVERY = 100
"""Requests between two looks at the processes' memory."""

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


class Requests:
    """Different ones, of which many begin alike."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._prefixes = [[rng.randrange(2, VOCAB_SIZE) for _ in range(rng.randint(4, 60))] for _ in range(20)]
        self._left = NUM_REQUESTS

    def __iter__(self) -> Requests:
        return self

    def __next__(self) -> Request:
        if not self._left:
            raise StopIteration
        self._left -= 1
        rng = self._rng
        prefix = rng.choice(self._prefixes) if rng.random() < 0.7 else []
        return Request(
            prefix + [rng.randrange(2, VOCAB_SIZE) for _ in range(rng.randint(1, 20))],
            seed=rng.randrange(2**32),
            n=2 if rng.random() < 0.1 else 1,
            max_tokens=rng.randint(1, 12),
            ignore_eos=rng.random() < 0.5,
            leaves_after=rng.randint(0, 3) if rng.random() < 0.03 else None,
        )


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
    gateway = processes.octavo(
        "gateway", model=model, model_name=MODEL_NAME, kvmanager=kvmanager.address, drain_seconds=5
    )
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
    requests = Requests(random.Random(seed))
    problems: list[str] = []
    done = 0
    async with services(processes, model) as (gateway, kvmanager, oracle):
        memory = Memory([gateway, kvmanager])

        async def ask() -> None:
            nonlocal done
            for request in requests:
                await send(client, request, problems)
                done += 1
                oracle.batches.clear()
                if done % SAMPLE_EVERY == 0:
                    memory.sample()

        began = time.monotonic()
        async with AsyncClient(gateway.address) as client:
            await asyncio.gather(*(ask() for _ in range(NUM_CLIENTS)))
        seconds = time.monotonic() - began
        assert problems == []
        assert oracle.problems == []
        await idle(kvmanager.address)
    grown = memory.growth()
    print(json.dumps({"requests": done, "seconds": round(seconds, 1), "grown_bytes": grown, "seed": seed}), flush=True)
    assert done == NUM_REQUESTS
    assert all(growth <= MAY_GROW_BYTES for growth in grown.values()), (grown, memory.samples)


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
