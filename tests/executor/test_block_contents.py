"""What blocks are said to hold: valid when the step that stored it is done, gone when a later one removes it."""

from __future__ import annotations

import random

import pytest

from executor.errors import StepOutOfMemory
from executor.memory.block_contents import BlockContents
from executor.step import BatchRefused, StepBatch, StoredBlock, Tier
from tests.scarce_memory import scarce

SEED = random.SystemRandom().getrandbits(32)

PLACES = [(tier, block) for tier in Tier for block in range(6)]


def stored(*blocks: tuple[Tier, int, bytes]) -> list[StoredBlock]:
    return [StoredBlock(*block) for block in blocks]


def test_random_steps_that_are_done_late_or_fail() -> None:
    """What is claimed is in memory, always; and what is in memory, was stored and not removed since, is claimed."""
    rng = random.Random(SEED)
    contents = BlockContents()
    claimed: dict[tuple[Tier, int], bytes] = {}  # done and not removed, in the order of storing
    under_way: list[tuple[int, dict[tuple[Tier, int], bytes]]] = []
    for step in range(1, 3000):
        if len(under_way) == 2 or (under_way and rng.random() < 0.3):
            number, records = under_way.pop(0)
            contents.done(number)
            for place, record in records.items():
                claimed.pop(place, None)
                claimed[place] = record
        elif rng.random() < 0.02:  # the steps under way fail, and somebody starts anew
            under_way.clear()
            contents.forget_pending()
        written = rng.sample(PLACES, rng.randrange(4))
        for place in written:
            claimed.pop(place, None)
            for _, records in under_way:
                records.pop(place, None)
        records = {place: b"%d" % rng.getrandbits(64) for place in written if rng.random() < 0.7}
        contents.launched(step, written, stored(*((*place, record) for place, record in records.items())))
        under_way.append((step, records))
        assert contents.records() == list(claimed.values()), f"seed {SEED}, step {step}"
    contents.clear()
    assert contents.records() == []


def test_a_block_that_is_overwritten_before_its_step_is_done_is_not_claimed() -> None:
    contents = BlockContents()
    contents.launched(1, [], stored((Tier.DEVICE, 3, b"a"), (Tier.HOST, 3, b"b"), (Tier.DEVICE, 4, b"c")))
    contents.launched(2, [(Tier.DEVICE, 3)], stored((Tier.DEVICE, 3, b"d")))
    contents.done(1)
    assert contents.records() == [b"b", b"c"]
    contents.done(2)
    assert contents.records() == [b"b", b"c", b"d"]


def test_a_step_of_the_executor_stores_when_it_is_done(llama, load, drive) -> None:
    executor = load(llama[0], host_memory="60KiB")
    driver = drive(executor)
    prompt = list(range(5, 37))
    table = [4, 5, 6]
    new = driver.new(1, prompt, table=table)
    rows = {"row_sequence_ids": [1], "row_num_tokens": [32]}
    driver.step(driver.batch(new_sequences=[new], stored_blocks=stored((Tier.DEVICE, 4, b"four")), **rows))
    driver.step(
        driver.batch(
            swaps_out=[(4, 0)],
            stored_blocks=stored((Tier.HOST, 0, b"four too"), (Tier.DEVICE, 5, b"five")),
            row_sequence_ids=[1],
            row_num_tokens=[1],
        )
    )
    assert executor.begin_epoch(2) == [b"four", b"four too", b"five"]
    assert executor.epoch == 2
    with pytest.raises(BatchRefused, match="epoch 2 is not above 2"):
        executor.begin_epoch(2)
    with pytest.raises(BatchRefused, match="epoch 1 is older than 2"):
        executor.step(driver.batch())
    with pytest.raises(BatchRefused, match="step 3 of epoch 2 where step 1 is due"):
        executor.step(StepBatch(2, 3))
    # The sequence is gone, its blocks are not: another one is computed after them.
    with pytest.raises(BatchRefused, match="unknown sequence 1"):
        executor.step(StepBatch(2, 1, row_sequence_ids=[1], row_num_tokens=[1]))
    second = drive(executor, epoch=2)
    again = second.new(7, prompt, table=[4, 5], num_computed=31)
    (token,) = second.step(second.batch(new_sequences=[again], row_sequence_ids=[7], row_num_tokens=[1])).token_ids
    assert token == driver.tokens[1][32]
    executor.step(StepBatch(2, 2, removed_blocks=[(Tier.DEVICE, 4)]))
    assert executor.begin_epoch(3) == [b"four too", b"five"]


def test_an_epoch_that_begins_with_a_step_knows_of_no_block(llama, load) -> None:
    """Whoever sends it has not asked, and will write over them without a word."""
    executor = load(llama[0])
    executor.step(StepBatch(1, 1, stored_blocks=stored((Tier.DEVICE, 4, b"four"))))
    executor.step(StepBatch(2, 1, stored_blocks=stored((Tier.DEVICE, 9, b"nine"))))
    assert executor.begin_epoch(3) == [b"nine"]


def test_a_step_that_fails_stores_nothing_and_removes_what_it_may_have_overwritten(llama, load, drive) -> None:
    executor = load(llama[0])
    driver = drive(executor)
    driver.step(driver.batch(stored_blocks=stored(*((Tier.DEVICE, block, b"%d" % block) for block in range(4)))))
    new = driver.new(1, list(range(5, 21)), table=[2])
    failing = driver.batch(
        removed_blocks=[(Tier.DEVICE, 2)],
        stored_blocks=stored((Tier.DEVICE, 2, b"new")),
        new_sequences=[new],
        row_sequence_ids=[1],
        row_num_tokens=[16],
    )
    with scarce(executor, 0, 1), pytest.raises(StepOutOfMemory):
        executor.step(failing)
    assert executor.begin_epoch(2) == [b"0", b"1", b"3"]
    executor.step(StepBatch(2, 1))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"removed_blocks": [(Tier.DEVICE, 10**6)]}, "removed_blocks: device block 1000000 of"),
        ({"removed_blocks": [(Tier.HOST, 0)]}, "removed_blocks: host block 0 of 0"),
        ({"stored_blocks": stored((Tier.DEVICE, -1, b""))}, "stored_blocks: device block -1 of"),
    ],
)
def test_blocks_that_do_not_exist_are_refused(llama, load, fields, message) -> None:
    executor = load(llama[0])
    with pytest.raises(BatchRefused, match=message):
        executor.step(StepBatch(1, 1, **fields))
    assert executor.epoch == 0
