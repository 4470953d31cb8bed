"""The log of what enters and leaves the prefix caches."""

from __future__ import annotations

from array import array

import pytest

from kvmanager.content import ROOT, block_identity
from kvmanager.cost_model import Preemption
from kvmanager.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventLog, Tier
from kvmanager.spec import BeamParams
from tests.kvmanager.harness import FIRST, Harness
from tests.kvmanager.kv_mirror import KVMirror


def pack(token_ids: list[int]) -> bytes:
    return array("i", token_ids).tobytes()


def test_events_are_numbered_from_one_without_gaps():
    log = KVEventLog()
    assert log.since(1) == (1, [])
    events = [AllBlocksCleared(str(number)) for number in range(1, 6)]
    for event in events:
        log.append(event)
    assert log.last_number == 5
    assert log.since(1) == (1, events)
    assert log.since(0) == (1, events)
    assert log.since(4) == (4, events[3:])
    assert log.since(6) == (6, [])


def test_a_reader_that_comes_back_late_learns_what_it_has_missed_for_good():
    log = KVEventLog(window=3)
    for number in range(1, 6):
        log.append(AllBlocksCleared(str(number)))
    first, events = log.since(1)
    assert first == 3, "1 and 2 are gone: what the reader knows is void"
    assert [event.executor for event in events] == ["3", "4", "5"]
    assert log.since(5) == (5, events[2:])


def test_a_long_replay_is_the_same_as_a_short_one():
    log = KVEventLog(window=1000)
    for number in range(1, 1501):
        log.append(AllBlocksCleared(str(number)))
    for start in (501, 900, 1244, 1245, 1246, 1500):
        first, events = log.since(start)
        assert first == start
        assert [int(event.executor) for event in events] == list(range(start, 1501))


def test_a_full_block_is_stored_with_its_tokens_and_its_parent():
    h = Harness(block_size=4)
    prompt = h.prompt(10)
    h.submit("a", prompt, max_tokens=1, salt=b"salt")
    h.run()
    first = block_identity(ROOT, pack(prompt[:4]), b"salt")
    second = block_identity(first, pack(prompt[4:8]), b"salt")
    _, events = h.manager.kv_events.since(1)
    assert events == [
        BlockStored(FIRST, Tier.DEVICE, first, ROOT, pack(prompt[:4])),
        BlockStored(FIRST, Tier.DEVICE, second, first, pack(prompt[4:8])),
    ]


def test_a_hit_stores_nothing():
    h = Harness(block_size=4)
    prompt = h.prompt(10)
    h.submit("a", prompt, max_tokens=1)
    h.run()
    number = h.manager.kv_events.last_number
    h.submit("b", prompt, max_tokens=1)
    h.run()
    assert h.manager.kv_events.last_number == number


def test_an_evicted_block_is_removed():
    h = Harness(num_blocks=4, block_size=4)
    h.submit("a", h.prompt(8), max_tokens=1)
    h.run()
    _, stored = h.manager.kv_events.since(1)
    h.submit("b", h.prompt(12), max_tokens=1)
    h.run()
    _, events = h.manager.kv_events.since(len(stored) + 1)
    removed = [event.identity for event in events if isinstance(event, BlockRemoved)]
    assert removed == [stored[1].identity], "the tail before the head"


def test_a_lost_executor_clears_all_its_blocks():
    h = Harness(block_size=4, num_executors=2)
    mirror = KVMirror(h.manager)
    for name in ("a", "b"):
        h.submit(name, h.prompt(10), max_tokens=4)
    h.run()
    mirror.check()
    h.detach(FIRST)
    _, events = h.manager.kv_events.since(h.manager.kv_events.last_number)
    assert events == [AllBlocksCleared(FIRST)]
    mirror.check()


def test_without_prefix_caching_there_are_none():
    h = Harness(prefix_caching=False)
    h.submit("a", h.prompt(20), max_tokens=4)
    h.run()
    assert h.manager.kv_events.last_number == 0


@pytest.mark.parametrize("preemption", [Preemption.SWAP, Preemption.RECOMPUTE])
def test_a_mirror_built_from_events_alone_equals_the_caches_at_any_time(preemption):
    h = Harness(
        num_blocks=24,
        block_size=2,
        num_host_blocks=30,
        max_batched_tokens=24,
        preemption=preemption,
        num_executors=2,
        max_waiting_requests=1000,
    )
    mirror = KVMirror(h.manager)
    prefixes = [h.prompt(12) for _ in range(3)]
    for index in range(60):
        prompt = h.rng.choice(prefixes)[: h.rng.randrange(12)] + h.prompt(h.rng.randrange(1, 8))
        kind = h.rng.choice([{}, {"n": 2}, {"n": 2, "beam": BeamParams(2)}])
        h.submit(index, prompt, max_tokens=h.rng.randrange(1, 9), seed=h.rng.randrange(3), **kind)
        for _ in range(h.rng.randrange(4)):
            for name in list(h.oracles):
                h.schedule(name)
                mirror.check()
                if h.oracles[name].pending:
                    h.result(name)
                    mirror.check()
        if index % 20 == 19:
            h.lose_and_return(h.rng.choice(list(h.oracles)))
            mirror.check()
    h.run_and_check()
    mirror.check()
