"""Epochs, steps and refusals: a refused batch leaves everything as it was."""

from __future__ import annotations

from dataclasses import replace

import pytest

from executor.step import BatchRefused, Penalties, SamplingParams, StepBatch, StepResult
from tests.executor.conftest import BOTH_DECODERS

pytestmark = BOTH_DECODERS

_GREEDY = SamplingParams(temperature=0)


@pytest.fixture
def start(llama, load, drive, prompt, memory_of):
    """Three sequences: 0 decodes, 1 is in the middle of its prompt (16 of 40 tokens computed), 2 reports candidates."""

    def start():
        driver = drive(load(llama[0], host_memory=memory_of(10)))
        new = [
            driver.new(0, prompt(20, seed=1)),
            driver.new(1, prompt(40, seed=2)),
            driver.new(2, prompt(9, seed=3), num_candidates=3),
        ]
        driver.run({0: 20, 1: 16, 2: 9}, new)
        return driver

    return start


@pytest.fixture
def driver(start):
    return start()


def _outcome(driver):
    """What the sequences go on to produce."""
    candidates = driver.run({0: 1, 1: 24, 2: 1}, chosen_tokens=[(2, 5)]).candidates
    for _ in range(4):
        driver.run({1: 1, 0: 1})
    return driver.tokens[0], driver.tokens[1], candidates


@pytest.fixture
def undisturbed(start):
    return _outcome(start())


_REFUSED = {
    "older epoch": ({"epoch": 0}, "epoch 0 is older than 1"),
    "gap": ({"step": 3}, "step 3 of epoch 1 where step 2 is due"),
    "repeated step": ({"step": 1}, "step 1 of epoch 1 where step 2 is due"),
    "new epoch not at step 1": ({"epoch": 2}, "step 2 of epoch 2 where step 1 is due"),
    "forget unknown": ({"forget": [0, 9]}, "forget: unknown sequence 9"),
    "forget twice": ({"forget": [0, 0]}, "forget: names sequence 0 twice"),
    "branch of unknown": ({"branches": [(9, 10)]}, "branches: unknown sequence 9"),
    "branch of forgotten": ({"forget": [2], "branches": [(2, 10)]}, "branches: unknown sequence 2"),
    "branch exists": ({"branches": [(2, 0)]}, "branches: child 0 of sequence 2 already exists"),
    "branch twice": ({"branches": [(2, 7), (2, 7)]}, "branches: child 7 of sequence 2 already exists"),
    "chosen for unknown": ({"chosen_tokens": [(9, 5)]}, "chosen_tokens: unknown sequence 9"),
    "chosen for a sampling one": ({"chosen_tokens": [(0, 5)]}, "chosen_tokens: sequence 0 samples its tokens itself"),
    "chosen twice": (
        {"chosen_tokens": [(2, 5), (2, 5)]},
        "chosen_tokens: sequence 2 has 1 tokens left to compute before its next one",
    ),
    "chosen outside the vocabulary": ({"chosen_tokens": [(2, 96)]}, "chosen_tokens: sequence 2: token 96 of a voc"),
    "negative token chosen": (
        {"chosen_tokens": [(2, -1)]},
        "chosen_tokens: sequence 2: token -1 of a vocabulary of 96",
    ),
    "nothing chosen": ({"row_sequence_ids": [2], "row_num_tokens": [1]}, "sequence 2: 1 tokens where 0 are left"),
    "edit of unknown": ({"table_edits": [(9, 0, 1)]}, "table_edits: unknown sequence 9"),
    "edit of forgotten": ({"forget": [0], "table_edits": [(0, 0, 1)]}, "table_edits: unknown sequence 0"),
    "edit past the end": ({"table_edits": [(0, 3, 1)]}, "table_edits: sequence 0: index 3 of a table of 2 blocks"),
    "edit before the start": ({"table_edits": [(0, -1, 1)]}, "table_edits: sequence 0: index -1 of a table of 2"),
    "edit of no block": ({"table_edits": [(0, 2, 10**6)]}, "table_edits: sequence 0: block 1000000 of"),
    "swap out of no block": ({"swaps_out": [(-1, 0)]}, "swaps_out: source block -1 of"),
    "swap out to no block": ({"swaps_out": [(0, 0), (1, 10)]}, "swaps_out: destination block 10 of 10"),
    "swap out to one block": ({"swaps_out": [(0, 3), (1, 3)]}, "swaps_out: two blocks go to one destination"),
    "swap in of no block": ({"swaps_in": [(10, 0)]}, "swaps_in: source block 10 of 10"),
    "swap in to no block": ({"swaps_in": [(0, 10**6)]}, "swaps_in: destination block 1000000 of"),
    "swap in to one block": ({"swaps_in": [(0, 3), (1, 3)]}, "swaps_in: two blocks go to one destination"),
    "copy of no block": ({"block_copies": [(0, -1)]}, "block_copies: block -1"),
    "row unknown": ({"row_sequence_ids": [9], "row_num_tokens": [1]}, "row_sequence_ids: unknown sequence 9"),
    "row forgotten": ({"forget": [0], "row_sequence_ids": [0], "row_num_tokens": [1]}, "unknown sequence 0"),
    "row twice": ({"row_sequence_ids": [0, 1, 1], "row_num_tokens": [1, 1, 1]}, "sequence 1 has two rows"),
    "counts missing": ({"row_sequence_ids": [0, 1], "row_num_tokens": [1]}, "row_num_tokens: 1 entries for 2 rows"),
    "no tokens": ({"row_sequence_ids": [0], "row_num_tokens": [0]}, "sequence 0: 0 tokens where 1 are left"),
    "too many tokens": ({"row_sequence_ids": [0], "row_num_tokens": [2]}, "sequence 0: 2 tokens where 1 are left"),
    "table too short": ({"row_sequence_ids": [1], "row_num_tokens": [24]}, "40 tokens exceed a table of 1 blocks"),
    "fork without sampling": (
        {"row_sequence_ids": [1], "row_num_tokens": [1], "table_edits": [(1, 1, 5)], "forks": {1: [7]}},
        "forks: sequence 1 does not sample",
    ),
    "fork without a row": ({"forks": {0: [7]}}, "forks: sequence 0 does not sample"),
    "fork of one that reports candidates": (
        {"chosen_tokens": [(2, 5)], "row_sequence_ids": [2], "row_num_tokens": [1], "forks": {2: [7]}},
        "forks: sequence 2 does not sample",
    ),
    "child exists": (
        {"row_sequence_ids": [0], "row_num_tokens": [1], "forks": {0: [7, 1]}},
        "child 1 of sequence 0 already exists",
    ),
    "child twice": (
        {"row_sequence_ids": [0], "row_num_tokens": [1], "forks": {0: [7, 7]}},
        "child 7 of sequence 0 already exists",
    ),
    "child is a branch": (
        {"branches": [(1, 7)], "row_sequence_ids": [0], "row_num_tokens": [1], "forks": {0: [7]}},
        "child 7 of sequence 0 already exists",
    ),
}


@pytest.mark.parametrize(("fields", "message"), _REFUSED.values(), ids=_REFUSED.keys())
def test_a_refused_batch_changes_nothing(driver, undisturbed, fields, message):
    batch = StepBatch(**({"epoch": 1, "step": 2} | fields))
    with pytest.raises(BatchRefused, match=message):
        driver.executor.step(batch)
    assert driver.executor.epoch == 1
    assert _outcome(driver) == undisturbed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_length": 0}, "prompt_length 0 of 3 tokens"),
        ({"prompt_length": 4}, "prompt_length 4 of 3 tokens"),
        ({"num_computed": 3}, "num_computed 3 of 3 tokens"),
        ({"token_ids": [5, 96, 5]}, "token_ids are not all below the vocabulary size 96"),
        ({"token_ids": [5, -1, 5]}, "token_ids are not all below the vocabulary size 96"),
        ({"block_table": [10**6]}, "block_table: block 1000000 of"),
        ({"sample_index": -1}, "sample_index -1"),
        ({"num_candidates": -1}, "num_candidates -1"),
    ],
)
def test_a_new_sequence_that_makes_no_sense_is_refused(driver, undisturbed, changes, message):
    """Even behind a good one, which then isn't there either; nor is the one it would have replaced gone."""
    good = driver.new(0, [4, 5, 6])
    bad = replace(driver.new(3, [4, 5, 6], table=[1]), **changes)
    driver.tokens[0] = undisturbed[0][:21]
    driver.computed[0], driver.tables[0] = 20, list(driver.executor._sequences[0].block_table)
    with pytest.raises(BatchRefused, match=rf"new_sequences: sequence 3: {message}"):
        driver.executor.step(driver.batch(new_sequences=[good, bad]))
    assert _outcome(driver) == undisturbed


def test_a_sequence_longer_than_the_model_is_refused(llama, load, drive, prompt):
    driver = drive(load(llama[0], max_model_len=50))
    with pytest.raises(BatchRefused, match="51 tokens exceed the model's 50 positions"):
        driver.run({0: 51}, [driver.new(0, prompt(51, seed=1))])


def test_a_sequence_may_fill_the_model(llama, load, drive, prompt):
    driver = drive(load(llama[0], max_model_len=50))
    assert len(driver.generate([prompt(48, seed=1)], 3)[0]) == 3


def test_a_higher_epoch_drops_every_sequence_and_starts_at_one(driver, prompt, undisturbed):
    driver.epoch, driver.steps = 5, 0
    with pytest.raises(BatchRefused, match="unknown sequence 0"):
        driver.executor.step(driver.batch(row_sequence_ids=[0], row_num_tokens=[1]))
    assert driver.executor.epoch == 1

    driver.run({0: 20, 1: 40}, [driver.new(0, prompt(20, seed=1)), driver.new(1, prompt(40, seed=2))])
    assert driver.executor.epoch == 5
    for _ in range(4):
        driver.run({0: 1, 1: 1})
    assert driver.tokens[0] == undisturbed[0][:25]
    assert driver.tokens[1] == undisturbed[1]
    with pytest.raises(BatchRefused, match="epoch 1 is older than 5"):
        driver.executor.step(StepBatch(epoch=1, step=2))


def test_new_sequences_replace_known_ones(driver, prompt, undisturbed):
    driver.run({0: 20}, [driver.new(0, prompt(20, seed=1))])
    driver.run({0: 1})
    assert driver.tokens[0] == undisturbed[0][:22]


def test_a_step_without_rows_counts(driver):
    assert driver.step(driver.batch(forget=[0])) == StepResult(epoch=1, step=2)
    with pytest.raises(BatchRefused, match="unknown sequence 0"):
        driver.executor.step(driver.batch(row_sequence_ids=[0], row_num_tokens=[1]))


def test_a_chunk_that_does_not_reach_the_last_token_samples_nothing(driver):
    result = driver.run({1: 8, 0: 1})
    assert result.sequence_ids == [0]


def test_after_a_failure_inside_only_a_higher_epoch_goes_on(driver, prompt, undisturbed, monkeypatch):
    def out_of_memory(*_):
        raise MemoryError("no memory")

    with monkeypatch.context() as broken:
        broken.setattr(driver.executor._runner, "run", out_of_memory)
        with pytest.raises(MemoryError):
            driver.run({0: 1})
    with pytest.raises(BatchRefused, match="step 2 of epoch 1 failed"):
        driver.executor.step(StepBatch(epoch=1, step=3))
    driver.epoch, driver.steps = 2, 0
    driver.run({0: 20}, [driver.new(0, prompt(20, seed=1))])
    assert driver.tokens[0] == undisturbed[0][:21]


def test_logprobs_are_aligned_with_the_tokens(driver, prompt):
    asking = driver.new(3, prompt(9, seed=3), SamplingParams(temperature=0, logprobs=2))
    result = driver.run({0: 1, 3: 9}, [asking])
    assert result.logprobs[0] is None
    logprobs = result.logprobs[1]
    assert logprobs is not None
    assert logprobs.top_token_ids[0] == result.token_ids[1]
    assert logprobs.logprob == logprobs.top_logprobs[0] > logprobs.top_logprobs[1]
    assert driver.run({0: 1}).logprobs == []


def test_scores_are_aligned_with_the_tokens(driver, prompt):
    """Of ranked sequences and their children, whatever else they ask for; 0 for the others."""
    hot = SamplingParams(temperature=3.0, top_k=5, seed=1, logprobs=0, penalties=Penalties(presence=1.0))
    ranked = driver.new(3, prompt(9, seed=3), hot, ranked=True)
    driver.new(4, prompt(9, seed=3))
    result = driver.run({0: 1, 3: 9, 1: 1}, [ranked], forks={3: [4]})
    assert result.sequence_ids == [0, 3, 4]
    assert result.scores == [0.0, result.logprobs[1].logprob, result.logprobs[2].logprob]
    assert result.scores[1] < 0
    driver.computed[4], driver.tables[4] = 9, driver.tables[3]
    assert [bool(score) for score in driver.run({0: 1, 4: 1}).scores] == [False, True]
    assert driver.run({0: 1}).scores == []


def test_ids_may_be_used_again_at_once(driver, undisturbed, prompt):
    """A forgotten sequence's id names a branch, and a new sequence replaces another branch, in one step."""
    table = list(driver.tables[0])
    for sequence_id in (0, 3):
        driver.new(sequence_id, prompt(20, seed=1), table=table)
    batch = driver.batch(
        forget=[0],
        branches=[(2, 0), (0, 3)],
        new_sequences=[driver.new(3, prompt(20, seed=1), table=table)],
        chosen_tokens=[(0, 5)],
        table_edits=[(0, 1, driver.free.pop())],
        row_sequence_ids=[3, 0],
        row_num_tokens=[20, 1],
    )
    result = driver.executor.step(batch)
    assert (result.sequence_ids, result.token_ids) == ([3], [undisturbed[0][20]])
    assert [candidates.sequence_id for candidates in result.candidates] == [0]
