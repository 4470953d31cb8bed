"""What the state store costs in Redis: time for each operation, memory for what is kept.

    python -m benchmarks.state_store --url redis://127.0.0.1:6379/0

Prints a JSON line for each, times as medians over many calls one after the other. What it leaves behind is gone
after a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import time
from collections.abc import Awaitable, Callable

import redis

from services.state.leadership import Holder
from services.state.redis.keys import framed, key
from services.state.store import StateStore, open_store
from services.state.token_log import LogEntry, LogKey, TokenLogLimits

NUM_STREAMS = 64
ENTRY_BYTES = 48
NUM_ENTRIES = 100
NUM_BLOCKS = 20_000
NUM_GROUPS = 4
ROUNDS = 100

MODEL = "benchmark"
HOLDER = Holder("127.0.0.1:0", "benchmark")


async def main(url: str, password: str | None) -> None:
    store = open_store(url, password, TokenLogLimits(seconds=60))
    await store.start()
    client = redis.Redis.from_url(url, password=password)
    timed = await operations(store)
    for name, kept in memory(client).items():
        print(json.dumps({"kept": name, "bytes": kept}))
    for name, operation in timed.items():
        print(json.dumps({"operation": name, "ms_p50": round(await median_ms(operation), 3)}))
    for group in range(NUM_GROUPS):
        await store.prefixes.clear(MODEL, f"group{group}")
    await store.leadership.give_up(MODEL, HOLDER)
    await store.close()


async def operations(store: StateStore) -> dict[str, Callable[[], Awaitable[object]]]:
    """What is timed, with all that it needs in place."""
    keys = [LogKey("benchmark", str(number)) for number in range(NUM_STREAMS)]
    for each in keys:
        await store.requests.open(each, "benchmark", os.urandom(1024))
    for _ in range(NUM_ENTRIES):
        await store.requests.append([LogEntry(each, "benchmark", os.urandom(ENTRY_BYTES)) for each in keys])
    await store.leadership.lead(MODEL, HOLDER, 60)
    await store.executors.register(MODEL, "127.0.0.1:0", "benchmark")
    identities = [os.urandom(32) for _ in range(NUM_BLOCKS)]
    for group in range(NUM_GROUPS):
        await store.prefixes.publish(MODEL, f"group{group}", identities, [])
    batch = [LogEntry(each, "benchmark", os.urandom(ENTRY_BYTES)) for each in keys]
    few = random.sample(identities, 64)

    async def find(blocks: list[bytes]) -> None:
        lengths = await store.prefixes.longest(MODEL, blocks)
        assert lengths == {f"group{group}": len(blocks) for group in range(NUM_GROUPS)}, "the leases have run out"

    return {
        f"longest of {len(few)} blocks in {NUM_GROUPS} groups": lambda: find(few),
        f"longest of 4096 blocks in {NUM_GROUPS} groups": lambda: find(identities[:4096]),
        "publish and withdraw 16 blocks": lambda: store.prefixes.publish(MODEL, "group0", few[:16], few[16:32]),
        "renew the lease": lambda: store.leadership.lead(MODEL, HOLDER, 60),
        "register an executor": lambda: store.executors.register(MODEL, "127.0.0.1:0", "benchmark"),
        f"take over a log of {NUM_ENTRIES} entries": lambda: store.requests.take_over(keys[0], "benchmark"),
        f"append an entry to each of {NUM_STREAMS} logs": lambda: store.requests.append(batch),
    }


async def median_ms(operation: Callable[[], Awaitable[object]]) -> float:
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        await operation()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1000


def memory(client: redis.Redis) -> dict[str, float]:
    """Bytes of Redis's memory for each thing that is kept, by its own account."""
    log, state = (key(framed("benchmark", "1"), part) for part in ("log", "state"))
    blocks = key(MODEL, "blocks", "group0")
    return {
        f"a log of {NUM_ENTRIES} entries of {ENTRY_BYTES} bytes": used(client, log) + used(client, state),
        "a block in the prefix directory": round(used(client, blocks) / client.scard(blocks), 1),
        "an executor": used(client, key(MODEL, "executors")),
        "a leader and its epoch": used(client, key(MODEL, "leader")),
    }


def used(client: redis.Redis, name: str) -> int:
    return int(client.memory_usage(name, samples=0) or 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="redis://127.0.0.1:6379/0")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.url, os.environ.get("OCTAVO_STATE_PASSWORD")))
