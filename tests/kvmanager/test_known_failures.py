"""How systems that page keys and values are known to fail: one regression test for each class.

The oracle executors refuse steps that no executor could carry out, and notice every wrong key or value that is read.
"""

from __future__ import annotations

from array import array
from dataclasses import asdict

import pytest

from kvmanager.accounts import Quota
from kvmanager.content import ROOT, block_identity
from kvmanager.cost_model import Preemption
from kvmanager.events import EventKind
from kvmanager.replica import Replica
from kvmanager.request import PrefixMatchEnd, RequestState
from kvmanager.spec import BeamParams, Scope
from tests.kvmanager.harness import Harness
from tests.kvmanager.states import STATES


def blocks_as_they_are(replica: Replica) -> list[object]:
    """Every reference count, every content, and the order in which both tiers would evict."""
    seen: list[object] = []
    for pool in (replica.memory.device.pool, replica.memory.host.pool):
        seen.append([(block.reference_count, block.content) for block in pool.blocks])
        seen.append([(account.owner, [block.block_id for block in account.cached]) for account in pool.accounts])
        seen.append([(account.owner, account.num_charged) for account in pool.accounts])
    return seen


# Whole-prompt hit: nothing would be left to compute, and the first token could not be sampled


@pytest.mark.parametrize("first_is_over", [True, False])
@pytest.mark.parametrize("options", [{}, {"n": 3}, {"beam": BeamParams(2), "n": 2}])
@pytest.mark.parametrize("prompt_length", [4, 16, 17])
def test_whole_prompt_hit_computes_the_last_token(prompt_length, options, first_is_over):
    h = Harness(block_size=4)
    prompt = h.prompt(prompt_length)
    h.submit("first", prompt, max_tokens=3)
    h.run() if first_is_over else h.step()
    h.submit("second", prompt, max_tokens=3, **options)
    h.run_and_check()
    assert h.prefilled_tokens("second") >= 1
    assert h.usage["second"].cached_tokens < prompt_length


def test_whole_prompt_hit_writes_no_block_that_others_read():
    h = Harness(block_size=4)
    prompt = h.prompt(16)
    h.submit("first", prompt, max_tokens=30)
    h.step()
    h.finish_steps()
    h.submit("second", prompt, max_tokens=3)
    batch = h.schedule()
    assert batch is not None
    assert batch.row_num_tokens == [1, 1]
    assert h.table("first")[:3] == h.table("second")[:3]
    assert h.table("first")[3] != h.table("second")[3], "its last token is written into a block of its own"
    assert batch.block_copies == [(h.table("first")[3], h.table("second")[3])]
    h.run_and_check()
    assert h.usage["second"].prefix_match_end is PrefixMatchEnd.LAST_TOKEN


# Hash collisions: two different blocks have one name


def first_blocks_collide(parent: bytes, tokens: bytes, salt: bytes, adapter: bytes = b"") -> bytes:
    return b"collision" if parent == ROOT else block_identity(parent, tokens, salt, adapter)


def two_first_blocks_collide(parent: bytes, tokens: bytes, salt: bytes, adapter: bytes = b"") -> bytes:
    alike = tokens in (array("i", [1, 2, 3, 4]).tobytes(), array("i", [5, 6, 7, 8]).tobytes())
    return b"collision" if parent == ROOT and alike else block_identity(parent, tokens, salt, adapter)


def second_blocks_collide(parent: bytes, tokens: bytes, salt: bytes, adapter: bytes = b"") -> bytes:
    first = block_identity(ROOT, parent, b"")
    return b"collision" if parent not in (ROOT, b"collision") else block_identity(first, tokens, salt, adapter)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("max_batched_tokens", [4, 64], ids=["chunks", "whole"])
@pytest.mark.parametrize("same_tail", [True, False])
@pytest.mark.parametrize("num_host_blocks", [0, 40])
def test_hash_collision_shares_nothing_and_changes_no_token(together, max_batched_tokens, same_tail, num_host_blocks):
    h = Harness(
        num_blocks=14,
        block_size=4,
        max_batched_tokens=max_batched_tokens,
        max_sequences=4,
        num_host_blocks=num_host_blocks,
        identify=first_blocks_collide,
    )
    tail = h.prompt(12)
    h.submit("a", [1, 2, 3, 4, *tail], max_tokens=9)
    if not together:
        h.run()
    h.submit("b", [5, 6, 7, 8, *(tail if same_tail else h.prompt(12))], max_tokens=9)
    h.run_and_check()
    assert h.usage["b"].cached_tokens == 0


def test_hash_collision_behind_a_shared_prefix_shares_the_prefix_alone():
    h = Harness(block_size=4, identify=second_blocks_collide)
    prefix, tail = h.prompt(4), h.prompt(8)
    h.submit("a", [*prefix, 1, 2, 3, 4, *tail], max_tokens=9)
    h.step()
    h.submit("b", [*prefix, 5, 6, 7, 8, *tail], max_tokens=9)
    h.step()
    assert set(h.table("a")) & set(h.table("b")) == {h.table("a")[0]}
    h.run_and_check()
    assert h.usage["b"].cached_tokens == 4


@pytest.mark.parametrize("common", [8, 3])
def test_hash_collision_with_a_block_that_has_been_evicted(common):
    """What came after the evicted block is still cached, and is not what comes after the one that has its name now."""
    h = Harness(num_blocks=40, block_size=4, identify=two_first_blocks_collide)
    docs, acme = Scope(b"docs", "shared:docs", 0), Scope(b"acme", "acme", 1)
    tail = h.prompt(8)
    h.submit("evicted", [1, 2, 3, 4, *tail], max_tokens=1, spans=((4, docs), (8, acme)))
    h.submit("more", h.prompt(80), max_tokens=1, scope=docs)
    h.run()
    h.submit("evicts", h.prompt(76), max_tokens=1)
    h.run()
    h.submit("takes its name", [5, 6, 7, 8, 9], max_tokens=1, spans=((4, docs), (1, acme)))
    h.run()
    h.submit("mistaken", [5, 6, 7, 8, *tail[:common], 49, 49], max_tokens=4, spans=((4, docs), (common + 2, acme)))
    h.run_and_check()
    assert h.usage["mistaken"].cached_tokens == 4


def test_hash_collision_does_not_survive_swapping():
    """A block's copy in the host tier is found by its content."""
    h = Harness(
        num_blocks=12, block_size=2, num_host_blocks=40, preemption=Preemption.SWAP, identify=first_blocks_collide
    )
    tail = h.prompt(4)
    for name, start in (("a", [1, 2]), ("b", [3, 4]), ("c", [5, 6])):
        h.submit(name, [*start, *tail], max_tokens=14)
    h.run_and_check()
    assert h.counters.preemptions_by_swap > 0


# Cached blocks touched before the capacity check


def blocked_by_memory(num_host_blocks: int = 0) -> tuple[Harness, list[int]]:
    """Somebody runs; of the returned prompt a part is cached; all of it does not fit for now."""
    h = Harness(num_blocks=16, block_size=4, num_host_blocks=num_host_blocks)
    prompt = h.prompt(40)
    h.submit("earlier", prompt[:12], max_tokens=1)
    h.submit("another", h.prompt(12), max_tokens=1)
    h.run()
    h.submit("running", h.prompt(28), max_tokens=15)
    h.step()
    return h, prompt


@pytest.mark.parametrize("num_host_blocks", [0, 20])
def test_cached_blocks_are_not_touched_before_the_capacity_check(num_host_blocks):
    h, prompt = blocked_by_memory(num_host_blocks)
    h.finish_steps()
    while h.request("running").sequences[0].num_computed % 4 == 0:  # the step itself must not need a block
        h.step()
        h.finish_steps()
    before, counters = blocks_as_they_are(h.replica), asdict(h.counters)
    event_number, evicted = h.manager.kv_events.last_number, h.replica.memory.device.cache.num_evicted
    h.submit("waits", prompt, max_tokens=1)
    h.schedule()
    assert h.details(EventKind.WAITED, "waits") == ["blocks"]
    assert blocks_as_they_are(h.replica) == before
    assert {**asdict(h.counters), "steps": counters["steps"]} == counters
    assert h.manager.kv_events.last_number == event_number
    assert h.replica.memory.device.cache.num_evicted == evicted
    h.run_and_check()


# Hits counted for a failed admission


def test_hits_are_counted_once_however_often_admission_fails():
    h, prompt = blocked_by_memory()
    before = h.counters.cached_prompt_tokens
    h.submit("waits", prompt, max_tokens=1)
    for _ in range(5):
        h.step()
        assert h.request("waits").state is RequestState.WAITING
    assert h.counters.cached_prompt_tokens == before
    assert h.counters.prompt_tokens == 12 + 12 + 28
    h.run_and_check()
    assert h.counters.cached_prompt_tokens == before + h.usage["waits"].cached_tokens
    assert h.counters.prompt_tokens == 12 + 12 + 28 + 40


def test_hits_are_counted_for_the_first_time_only_when_a_prompt_is_computed_again():
    """Preempted before its prompt is done, a request meets its own blocks again: no more hits than it has tokens."""
    quotas = {"shared:docs": Quota(weight=0.001), "acme": Quota(weight=1000.0)}
    h = Harness(num_blocks=25, block_size=4, max_batched_tokens=8, max_sequences=8, quotas=quotas)
    prompt, docs, acme = h.prompt(49), Scope(b"docs", "shared:docs", 0), Scope(b"acme", "acme", 1)
    h.submit("earlier", prompt[:33], max_tokens=1, spans=((8, docs), (25, acme)), tenant="acme")
    h.run()
    h.submit("old", h.prompt(4), max_tokens=10, n=6)
    for _ in range(3):
        h.step()
    h.submit("again", prompt, max_tokens=1, spans=((8, docs), (41, acme)), tenant="acme")
    h.run_and_check()
    assert h.details(EventKind.PREEMPTED, "again") == ["recompute"]
    assert h.usage["again"].cached_tokens == 32
    assert h.counters.cached_prompt_tokens == 32


# A stale block table after preemption or resumption


def check_tables(h: Harness) -> None:
    """With no step under way, the executor's tables are ours."""
    for name, oracle in h.oracles.items():
        sequences = h.manager.replicas[name].scheduler.sequences
        for sequence_id, known in oracle.sequences.items():
            sequence = sequences.get(sequence_id)
            if sequence is not None and sequence.resident:
                assert known.table == [block.block_id for block in sequence.table]


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("preemption", [Preemption.SWAP, Preemption.RECOMPUTE])
def test_no_stale_table_after_preemption_and_resumption(preemption, lost):
    h = Harness(num_blocks=16, block_size=2, max_sequences=8, num_host_blocks=40, preemption=preemption)
    for name in ("a", "b", "c"):
        h.submit(name, h.prompt(6), max_tokens=18)
    h.submit("group", h.prompt(5), max_tokens=6, n=3)
    h.submit("beams", h.prompt(5), max_tokens=5, n=2, beam=BeamParams(3))
    resumed: set[int] = set()
    for step in range(1000):
        first, second = h.schedule(), h.schedule()
        for batch in (first, second):
            for new in batch.new_sequences if batch else ():
                request = h.replica.scheduler.sequences[new.sequence_id].request
                if h.details(EventKind.PREEMPTED, request.spec.handle):
                    resumed.add(new.sequence_id)
        h.finish_steps()
        check_tables(h)
        if lost and step == 9:
            h.lose_and_return()
        if h.manager.idle:
            break
    h.run_and_check()
    assert resumed
    assert (h.counters.preemptions_by_swap > 0) is (preemption is Preemption.SWAP)


# A free under a step that is under way


def test_no_block_is_given_out_while_a_step_under_way_may_write_it():
    h = Harness(num_blocks=8, block_size=4)
    h.submit("leaves", h.prompt(16), max_tokens=16)
    assert h.schedule() is not None
    assert h.schedule() is not None
    h.abort("leaves")
    h.submit("needs all", h.prompt(28), max_tokens=5)
    h.result()
    forgets = h.schedule()
    assert forgets is not None
    assert forgets.row_sequence_ids == []
    assert h.details(EventKind.WAITED, "needs all") == ["blocks"]
    h.result()
    admits = h.schedule()
    assert admits is not None
    assert admits.row_num_tokens == [28]
    h.run()
    h.check_answers()
    h.check_nothing_is_left()


def test_no_block_of_a_preempted_request_is_given_out_while_a_step_under_way_may_write_it():
    h = Harness(num_blocks=6, block_size=4, prefix_caching=False)
    h.submit("a", h.prompt(8), max_tokens=13)
    h.submit("b", h.prompt(8), max_tokens=13)
    held: list[int] = []
    while not h.details(EventKind.PREEMPTED, "b"):
        held = h.table("b")
        h.schedule()
        if len(h.oracle.pending) == 2:
            h.result()
    assert h.oracle.pending, "its last row is still under way"
    assert not set(held) & set(h.table("a"))
    h.run_and_check()


# Abort in each state


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_abort_in_each_state_leaves_nothing_behind(state):
    h = state()
    h.abort("goes")
    h.manager.check_integrity()
    if not h.oracles:
        h.attach()
    h.run()
    assert "goes" not in h.usage, "its caller has left"
    assert not h.errors
    assert h.output["stays", 0] == h.expected("stays")
    assert not list(h.manager.pins)
    h.check_nothing_is_left()


# Double free


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_no_double_free_when_a_request_is_ended_in_every_way_at_once(state):
    h = state()
    h.abort("goes", sample_index=0)
    h.abort("goes", sample_index=0)
    h.abort("goes")
    h.abort("goes")
    h.expire(1e9)
    h.manager.unpin("default", "kept", h.now)
    h.manager.unpin("default", "kept", h.now)
    if not h.oracles:
        h.attach()
    h.run()
    assert h.output["stays", 0] == h.expected("stays")
    h.check_nothing_is_left()


def test_no_double_free_of_a_request_that_ended_by_itself():
    h = Harness()
    h.submit("a", h.prompt(10), max_tokens=3, n=2)
    h.run()
    h.abort("a")
    h.abort("a", sample_index=1)
    h.check_nothing_is_left()
    assert h.usage["a"].completion_tokens == 6


# Admission thrash when only a chunk of a prompt fits


@pytest.mark.parametrize("preemption", [Preemption.SWAP, Preemption.RECOMPUTE])
def test_no_admission_thrash_when_only_a_chunk_fits(preemption):
    h = Harness(
        num_blocks=20, block_size=4, max_batched_tokens=8, max_sequences=4, num_host_blocks=40, preemption=preemption
    )
    h.submit("running", h.prompt(20), max_tokens=40)
    h.step()
    h.submit("large", h.prompt(64), max_tokens=4)  # 16 blocks, where 15 are left; a chunk is two
    while "running" not in h.usage:
        h.step()
        assert h.request("large").state is RequestState.WAITING
    h.run_and_check()
    assert h.handles(EventKind.ADMITTED) == ["running", "large"]
    assert h.counters.preemptions == 0
    assert h.prefilled_tokens("large") == 64


# Forked children with equal seeds


@pytest.mark.parametrize("preemption", [None, Preemption.SWAP, Preemption.RECOMPUTE])
def test_forked_children_with_equal_seeds_differ_and_can_be_had_again(preemption):
    h = Harness(
        num_blocks=64 if preemption is None else 18,
        block_size=4,
        num_host_blocks=40,
        preemption=preemption or Preemption.AUTO,
    )
    prompt = h.prompt(9)
    h.submit("other", h.prompt(8), max_tokens=30)
    h.submit("once", prompt, max_tokens=10, n=4, seed=7)
    h.submit("again", prompt, max_tokens=10, n=4, seed=7)
    h.run_and_check()
    once, again = ([h.output[name, index] for index in range(4)] for name in ("once", "again"))
    assert len({tuple(tokens) for tokens in once}) == 4
    assert once == again
    assert (h.counters.preemptions > 0) is (preemption is not None)


def test_forked_children_with_equal_seeds_differ_after_their_executor_is_lost():
    h = Harness(block_size=4)
    h.submit("a", h.prompt(9), max_tokens=10, n=4, seed=7)
    for _ in range(3):
        h.step()
    h.lose_and_return()
    h.run_and_check()
    assert len({tuple(h.output["a", index]) for index in range(4)}) == 4
