"""Blocks go to the host and come back: to the same or to other blocks, while others compute over where they were."""

from __future__ import annotations

import pytest
import torch

from executor.step import SamplingParams, StepResult
from tests.executor.conftest import BOTH_DECODERS

pytestmark = BOTH_DECODERS

_ON_GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"))
_SAMPLING = SamplingParams(temperature=1.0, seed=4)


@pytest.fixture(params=["cpu", _ON_GPU])
def driver(request, llama, load, drive, prompt, memory_of, decoder):
    """Sequence 0 has 40 tokens in 3 blocks, sequence 1 has 20 in 2; both go on."""
    executor = load(
        llama[0],
        host_memory=memory_of(10),
        device=request.param,
        dtype="float32",
        decoder=decoder if request.param == "cpu" else "torch",
    )
    driver = drive(executor)
    new = [driver.new(0, prompt(40, seed=1), _SAMPLING), driver.new(1, prompt(20, seed=2))]
    driver.run({0: 40, 1: 20}, new)
    return driver


def _continue(driver, count, *sequence_ids):
    for _ in range(count):
        driver.run(dict.fromkeys(sequence_ids, 1))


@pytest.fixture
def undisturbed(llama, load, drive, prompt):
    driver = drive(load(llama[0]))
    new = [driver.new(0, prompt(40, seed=1), _SAMPLING), driver.new(1, prompt(20, seed=2))]
    driver.run({0: 40, 1: 20}, new)
    _continue(driver, 12, 0, 1)
    return driver.tokens


def _edits(driver, sequence_id, table):
    """Puts all of a sequence elsewhere."""
    driver.tables[sequence_id] = list(table)
    return [(sequence_id, index, block) for index, block in enumerate(table)]


def test_a_pool_has_as_many_host_blocks_as_fit(driver):
    assert driver.executor.info.num_host_blocks == 10


def test_swapped_out_overwritten_and_swapped_in_elsewhere(driver, undisturbed, prompt):
    """The blocks are overwritten in the very step that swaps them out; the sequence itself stays known meanwhile."""
    blocks = driver.tables[0]
    out = list(zip(blocks, (7, 8, 2), strict=True))
    intruder = driver.new(5, prompt(48, seed=9), table=blocks)
    driver.run({5: 48, 1: 1}, [intruder], swaps_out=out)
    _continue(driver, 3, 1)

    others = [driver.free.pop() for _ in blocks]
    edits = _edits(driver, 0, others)
    batch = driver.batch(
        forget=[5],
        swaps_in=[(host, block) for (_, host), block in zip(out, others, strict=True)],
        table_edits=edits,
        row_sequence_ids=[1, 0],
        row_num_tokens=[1, 1],
    )
    driver.step(batch)
    _continue(driver, 7, 0, 1)
    assert driver.tokens[0] == undisturbed[0][: len(driver.tokens[0])]
    assert driver.tokens[1] == undisturbed[1][: len(driver.tokens[1])]


def test_two_sequences_change_places_in_one_step(driver, undisturbed):
    """Out comes before in: a block that is swapped out is where another one comes in, in the same step."""
    first, second = driver.tables[0][:2], list(driver.tables[1])
    last = driver.tables[0][2]
    edits = _edits(driver, 0, [*second, last]) + _edits(driver, 1, first)
    out = list(zip(first + second, range(4), strict=True))
    back = list(zip(range(4), second + first, strict=True))
    result = driver.step(driver.batch(swaps_out=out, swaps_in=back, table_edits=edits))
    assert (result.sequence_ids, result.candidates) == ([], [])
    _continue(driver, 6, 0, 1)
    assert [driver.tokens[i] for i in (0, 1)] == [undisturbed[i][: len(driver.tokens[i])] for i in (0, 1)]


def test_copies_come_after_swaps(driver, undisturbed):
    """A block that comes in is copied on, over one that went out."""
    block, neighbour = driver.tables[1]
    spare = driver.free.pop()
    driver.step(driver.batch(swaps_out=[(block, 0), (neighbour, 1)]))
    edits = _edits(driver, 1, [block, spare])
    driver.step(
        driver.batch(
            swaps_out=[(block, 5)],
            swaps_in=[(1, neighbour), (0, spare)],
            block_copies=[(spare, block), (neighbour, spare)],
            table_edits=edits,
        )
    )
    _continue(driver, 5, 1)
    assert driver.tokens[1] == undisturbed[1][:26]


def test_many_operations_and_no_row(driver):
    batch = driver.batch(
        forget=[1], table_edits=[(0, 3, 1)], swaps_out=[(2, 0)], swaps_in=[(0, 3)], block_copies=[(3, 4)]
    )
    result = driver.step(batch)
    assert result == StepResult(epoch=1, step=2, speeds=result.speeds)


def test_a_sequence_that_starts_again_on_swapped_in_blocks(driver, undisturbed, prompt):
    """As after a preemption: forgotten when its blocks go out, new when they come back, nothing computed twice."""
    blocks = driver.tables[0]
    driver.run({1: 1}, swaps_out=list(zip(blocks, (4, 5, 6), strict=True)), forget=[0])
    driver.run({6: 48}, [driver.new(6, prompt(48, seed=8), table=blocks)])
    table = [driver.free.pop() for _ in blocks]
    new = driver.new(7, driver.tokens[0], _SAMPLING, prompt_length=40, num_computed=40, table=table)
    driver.run({7: 1}, [new], swaps_in=list(zip((4, 5, 6), table, strict=True)))
    _continue(driver, 6, 7)
    assert driver.tokens[7] == undisturbed[0][:48]
