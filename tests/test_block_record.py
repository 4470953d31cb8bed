"""The oracle's record of what its blocks hold: right about right steps, and deaf to no wrong one."""

from __future__ import annotations

import random
from array import array

import pytest

from kvmanager.content import ROOT, block_identity
from kvmanager.kv_events import Tier
from kvmanager.spec import Scope
from kvmanager.step import NewSequence, StepBatch, StoredBlock
from tests.oracle import Oracle

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]
OTHER = [8, 8, 8, 8]


def holds(block_id: int, tokens: list[int], after: StoredBlock | None = None, tier: Tier = Tier.DEVICE) -> StoredBlock:
    parent, packed = after.identity if after else ROOT, array("i", tokens).tobytes()
    return StoredBlock(tier, block_id, block_identity(parent, packed, b""), parent, packed, Scope())


FIRST = holds(5, TOKENS[:4])
SECOND = holds(2, TOKENS[4:], after=FIRST)


@pytest.fixture
def oracle() -> Oracle:
    return Oracle(8, 4, random.Random(1), num_host_blocks=2)


def computes(step: int, sequence_id: int, tokens: list[int], table: list[int], **fields) -> StepBatch:
    """A step whose one row computes the whole of a new sequence."""
    new = NewSequence(sequence_id, tokens, len(tokens), 0, table, "seed", 0)
    rows = {"row_sequence_ids": [sequence_id], "row_num_tokens": [len(tokens)]}
    return StepBatch(step, new_sequences=[new], **rows, **fields)


def run(oracle: Oracle, batch: StepBatch) -> None:
    oracle.send(batch)
    oracle.run()


def test_what_is_stored_counts_once_the_step_is_done(oracle: Oracle) -> None:
    oracle.send(computes(1, 1, TOKENS, [5, 2], stored_blocks=[FIRST, SECOND]))
    assert not oracle.record.blocks
    oracle.run()
    assert oracle.describe_blocks() == [FIRST, SECOND]
    assert not oracle.sequences


def test_what_is_removed_is_gone_when_the_step_is_launched(oracle: Oracle) -> None:
    run(oracle, computes(1, 1, TOKENS, [5, 2], stored_blocks=[FIRST, SECOND]))
    oracle.send(StepBatch(2, removed_blocks=[(Tier.DEVICE, 2)]))
    oracle._launch(1)
    assert list(oracle.record.blocks.values()) == [FIRST]


def test_a_removal_stops_what_a_step_under_way_stores(oracle: Oracle) -> None:
    oracle.send(computes(1, 1, TOKENS, [5, 2], stored_blocks=[FIRST, SECOND]))
    other = holds(2, OTHER)
    oracle.send(computes(2, 2, OTHER, [2], removed_blocks=[(Tier.DEVICE, 2)], stored_blocks=[other]))
    oracle._launch(2)
    oracle.run()
    assert list(oracle.record.blocks.values()) == [FIRST]
    assert oracle.describe_blocks() == [FIRST, other]


def test_steps_that_have_not_begun_are_dropped_when_another_takes_over(oracle: Oracle) -> None:
    for step in range(1, 20):
        oracle.send(StepBatch(step))
        if oracle._num_launched < step:
            break
    launched = oracle._num_launched
    oracle.describe_blocks()
    assert (oracle.pending, oracle.last_step) == (oracle.pending.__class__(), 0)
    assert launched < step
    run(oracle, StepBatch(1))


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ([holds(5, OTHER)], "follows another context|does not hold"),
        ([holds(5, [3, 1, 4, 2])], "does not hold"),
        ([FIRST, holds(2, TOKENS[4:])], "follows another context"),
        ([FIRST, FIRST], "twice"),
        ([holds(0, TOKENS[:4], tier=Tier.HOST)], "does not hold"),
    ],
)
def test_what_is_not_so_is_found(oracle: Oracle, stored: list[StoredBlock], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        run(oracle, computes(1, 1, TOKENS, [5, 2], stored_blocks=stored))


def test_what_is_overwritten_before_it_was_removed_is_found(oracle: Oracle) -> None:
    run(oracle, computes(1, 1, TOKENS, [5, 2], stored_blocks=[FIRST, SECOND]))
    with pytest.raises(AssertionError, match="does not hold"):
        run(oracle, computes(2, 2, OTHER, [5]))


def test_what_is_copied_over_before_it_was_removed_is_found(oracle: Oracle) -> None:
    run(oracle, computes(1, 1, TOKENS, [5, 2], stored_blocks=[FIRST, SECOND]))
    with pytest.raises(AssertionError, match="does not hold"):
        run(oracle, StepBatch(2, block_copies=[(2, 5)]))


def test_a_block_holds_one_thing_at_a_time(oracle: Oracle) -> None:
    run(oracle, computes(1, 1, TOKENS, [5, 2], stored_blocks=[FIRST]))
    with pytest.raises(AssertionError, match="was not removed"):
        run(oracle, computes(2, 2, OTHER, [5], stored_blocks=[holds(5, OTHER)]))
    with pytest.raises(AssertionError, match="nobody said"):
        Oracle(8, 4, random.Random(1)).record.launch(StepBatch(1, removed_blocks=[(Tier.DEVICE, 1)]))
