"""The benchmarks of the KV manager's own cost measure what they say they do."""

from __future__ import annotations

from benchmarks.prefix_match import FullCache, measure_match
from benchmarks.scheduler_step import BLOCK_SIZE, DecodeLoop, measure


def test_every_sequence_decodes_in_every_step_and_memory_grows_by_blocks():
    loop = DecodeLoop(num_running=8, num_blocks=400, seed=1)
    memory = loop._manager.replicas["executor"].memory
    before, tokens = memory.pool.num_referenced, loop._manager.counters.generated_tokens
    for _ in range(2 * BLOCK_SIZE):
        assert loop.step().total > 0
    assert loop._manager.counters.generated_tokens - tokens == 8 * 2 * BLOCK_SIZE
    assert memory.pool.num_referenced - before == 8 * 2
    loop._manager.check_integrity()


def test_two_pools_are_measured_in_turns():
    loops = {num_blocks: DecodeLoop(4, num_blocks, seed=1) for num_blocks in (400, 800)}
    medians = measure(loops, num_steps=5)
    assert medians.keys() == loops.keys()
    assert all(value > 0 for median in medians.values() for value in median.values())


def test_a_long_prompt_is_found_whole():
    figures = measure_match(prompt_tokens=1600, rounds=3, seed=1)
    assert figures["prompt_tokens"] == 1600
    assert figures["match_ms_p50"] > 0


def test_a_full_cache_stays_full_between_evictions():
    cache = FullCache(300, seed=1)
    for _ in range(3):
        assert cache.evict(100) > 0
        assert cache._memory.pool.num_cached == 300
    assert cache._memory.device.cache.num_evicted == 300
