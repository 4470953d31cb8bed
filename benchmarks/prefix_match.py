"""What the prefix cache costs: matching a long prompt, and evicting from a large cache.

    python -m benchmarks.prefix_match [--model smollm2]

Prints JSON lines, last the summary:

- `match_ms_p50`: a prompt of `prompt_tokens` is named block by block and found in a cache that is much larger.
- `evict_us_p50_N`: giving up one cached block out of N, all of them cached, and `evict_ratio`, the largest over the
  smallest: flat means near 1.
- With a model: `copy_break_even_tokens`, so many tokens' prefill takes as long as copying a block within the device
  pool: reuse inside a partly matching block pays from there on.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from array import array
from itertools import count
from pathlib import Path

from executor.loader import load_executor
from executor.settings import ExecutorSettings
from kvmanager.capacity import Capacity
from kvmanager.content import ScopeMap
from kvmanager.cost_model import CostModel, Preemption
from kvmanager.kv_events import KVEventLog
from kvmanager.memory import Memory
from kvmanager.request import Request, Sequence
from kvmanager.spec import DEFAULT_TENANT, RequestSpec
from services.model_store import resolve_model

BLOCK_SIZE = 16
VOCAB_SIZE = 32_000
POOL_SIZES = (10_000, 100_000, 1_000_000)


def make_memory(num_blocks: int) -> Memory:
    capacity = Capacity(num_blocks, BLOCK_SIZE, num_blocks * BLOCK_SIZE)
    return Memory("executor", capacity, CostModel(Preemption.AUTO, BLOCK_SIZE), {}, KVEventLog())


def make_request(number: int, prompt: list[int]) -> Request:
    spec = RequestSpec(number, prompt)
    request = Request(spec, number, 0.0, ScopeMap(spec.spans, BLOCK_SIZE), len(prompt) + 1)
    request.sequences.append(Sequence(number, request, 0, array("i", prompt)))
    return request


def fill(memory: Memory, request: Request) -> None:
    """Puts a request's prompt into the cache, as if it had been computed."""
    memory.admit(memory.plan(request))
    sequence = request.sequences[0]
    sequence.num_computed = len(sequence.token_ids)
    memory.register_full_blocks(sequence)
    memory.release(sequence)


def random_prompt(rng: random.Random, num_tokens: int) -> list[int]:
    return [rng.randrange(VOCAB_SIZE) for _ in range(num_tokens)]


def measure_match(prompt_tokens: int, rounds: int, seed: int) -> dict[str, float]:
    """Matches the same prompt again and again, each time as a new request that nothing is known of yet."""
    rng = random.Random(seed)
    memory = make_memory(50_000)
    for number in range(10):
        fill(memory, make_request(number, random_prompt(rng, 50_000)))
    prompt = random_prompt(rng, prompt_tokens)
    fill(memory, make_request(100, prompt))
    gc.collect()
    gc.freeze()
    wall, cpu = [], []
    for number in range(rounds):
        request = make_request(1000 + number, list(prompt))
        cpu_start, start = time.thread_time(), time.perf_counter()
        admission = memory.plan(request)
        wall.append(time.perf_counter() - start)
        cpu.append(time.thread_time() - cpu_start)
        assert len(admission.sources[0]) == (prompt_tokens - 1) // BLOCK_SIZE
    return {
        "prompt_tokens": prompt_tokens,
        "match_ms_p50": round(1000 * statistics.median(wall), 3),
        "match_cpu_ms_p50": round(1000 * statistics.median(cpu), 3),
    }


class FullCache:
    """A pool in which every block is cached."""

    def __init__(self, num_blocks: int, seed: int) -> None:
        self._rng = random.Random(seed)
        self._numbers = count(1)
        self._memory = make_memory(num_blocks)
        self._fill()
        assert self._memory.pool.num_cached == num_blocks

    def evict(self, num_blocks: int) -> float:
        """Returns the microseconds that each of so many evictions took."""
        pool = self._memory.pool
        account = pool.accounts[DEFAULT_TENANT]
        start = time.perf_counter()
        blocks = [pool.allocate(account) for _ in range(num_blocks)]
        seconds = time.perf_counter() - start
        pool.release(blocks)
        self._fill()
        return 1e6 * seconds / num_blocks

    def _fill(self) -> None:
        while (room := self._memory.pool.num_free) > 0:
            prompt = random_prompt(self._rng, min(room, 1000) * BLOCK_SIZE)
            fill(self._memory, make_request(next(self._numbers), prompt))


def measure_eviction(rounds: int, seed: int) -> dict[str, float]:
    """All pool sizes in turns."""
    caches = {num_blocks: FullCache(num_blocks, seed) for num_blocks in POOL_SIZES}
    gc.collect()
    gc.freeze()
    samples: dict[int, list[float]] = {num_blocks: [] for num_blocks in POOL_SIZES}
    for _ in range(rounds):
        for num_blocks, cache in caches.items():
            samples[num_blocks].append(cache.evict(100))
    medians = {num_blocks: statistics.median(values) for num_blocks, values in samples.items()}
    result = {f"evict_us_p50_{num_blocks}": round(value, 2) for num_blocks, value in medians.items()}
    return {**result, "evict_ratio": round(medians[POOL_SIZES[-1]] / medians[POOL_SIZES[0]], 2)}


def measure_copy(model: Path) -> dict[str, float]:
    """What copying a block costs on this machine with this model, in tokens of prefill."""
    speeds = load_executor(ExecutorSettings(model, kv_memory="128MiB")).speeds
    return {
        "prefill_tokens_per_s": round(speeds.prefill_tokens_per_s, 1),
        "copy_blocks_per_s": round(speeds.copy_blocks_per_s, 1),
        "copy_break_even_tokens": round(speeds.prefill_tokens_per_s / speeds.copy_blocks_per_s, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt-tokens", type=int, default=32_768)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", help="also measure what copying a part of a block costs with this model")
    args = parser.parse_args()
    summary: dict[str, float] = {}
    if args.model is not None:
        summary |= measure_copy(Path(resolve_model(args.model)))
        print(json.dumps(summary))
    for figures in (
        measure_match(args.prompt_tokens, args.rounds, args.seed),
        measure_eviction(args.rounds, args.seed),
    ):
        print(json.dumps(figures))
        summary |= figures
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
