"""Epochs, steps and refusals: a refused batch leaves everything as it was."""

from __future__ import annotations

from dataclasses import replace

import pytest

from executor.step import BatchRefused, SamplingParams, StepBatch

_GREEDY = SamplingParams(temperature=0)


@pytest.fixture
def driver(llama, load, drive, prompt):
    """Two sequences: 0 decodes, 1 is in the middle of its prompt (16 of 40 tokens computed)."""
    driver = drive(load(llama[0]))
    driver.run({0: 20, 1: 16}, [driver.new(0, prompt(20, seed=1)), driver.new(1, prompt(40, seed=2))])
    return driver


def _outcome(driver):
    """What both sequences go on to produce."""
    driver.run({0: 1, 1: 24})
    for _ in range(4):
        driver.run({1: 1, 0: 1})
    return driver.tokens[0], driver.tokens[1]


@pytest.fixture
def undisturbed(llama, load, drive, prompt):
    driver = drive(load(llama[0]))
    driver.run({0: 20, 1: 16}, [driver.new(0, prompt(20, seed=1)), driver.new(1, prompt(40, seed=2))])
    return _outcome(driver)


_REFUSED = {
    "older epoch": ({"epoch": 0}, "epoch 0 is older than 1"),
    "gap": ({"step": 3}, "step 3 of epoch 1 where step 2 is due"),
    "repeated step": ({"step": 1}, "step 1 of epoch 1 where step 2 is due"),
    "new epoch not at step 1": ({"epoch": 2}, "step 2 of epoch 2 where step 1 is due"),
    "forget unknown": ({"forget": [0, 9]}, "forget: unknown sequence 9"),
    "forget twice": ({"forget": [0, 0]}, "forget: names a sequence twice"),
    "row unknown": ({"row_sequence_ids": [9], "row_num_tokens": [1]}, "unknown sequence 9"),
    "row forgotten": ({"forget": [0], "row_sequence_ids": [0], "row_num_tokens": [1]}, "unknown sequence 0"),
    "row twice": ({"row_sequence_ids": [1, 1], "row_num_tokens": [1, 1]}, "sequence 1 has two rows"),
    "counts missing": ({"row_sequence_ids": [0, 1], "row_num_tokens": [1]}, "row_num_tokens: 1 entries for 2 rows"),
    "no tokens": ({"row_sequence_ids": [0], "row_num_tokens": [0]}, "sequence 0: 0 tokens where 1 are left"),
    "too many tokens": ({"row_sequence_ids": [0], "row_num_tokens": [2]}, "sequence 0: 2 tokens where 1 are left"),
    "table too short": ({"row_sequence_ids": [1], "row_num_tokens": [24]}, "40 tokens exceed a table of 1 blocks"),
    "edit of no row": ({"table_edits": [(0, 0, 1)]}, "table_edits: row 0 of 0"),
    "edit past the end": (
        {"row_sequence_ids": [0], "row_num_tokens": [1], "table_edits": [(0, 3, 1)]},
        "row 0: index 3 of a table of 2 blocks",
    ),
    "edit of no block": (
        {"row_sequence_ids": [0], "row_num_tokens": [1], "table_edits": [(0, 2, 10**6)]},
        "row 0: block 1000000 of",
    ),
    "copy of no block": ({"block_copies": [(0, -1)]}, "block_copies: block -1"),
    "fork without sampling": (
        {"row_sequence_ids": [1], "row_num_tokens": [1], "table_edits": [(0, 1, 5)], "forks": {1: [7]}},
        "forks: sequence 1 does not sample",
    ),
    "fork without a row": ({"forks": {0: [7]}}, "forks: sequence 0 does not sample"),
    "child exists": (
        {"row_sequence_ids": [0], "row_num_tokens": [1], "forks": {0: [7, 1]}},
        "child 1 of sequence 0 already exists",
    ),
    "child twice": (
        {"row_sequence_ids": [0], "row_num_tokens": [1], "forks": {0: [7, 7]}},
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
        ({"token_ids": [5, 96, 5]}, "below the vocabulary size 96"),
        ({"token_ids": [5, -1, 5]}, "below the vocabulary size 96"),
        ({"block_table": [10**6]}, "block 1000000 of"),
        ({"sample_index": -1}, "sample_index -1"),
    ],
)
def test_a_new_sequence_that_makes_no_sense_is_refused(driver, undisturbed, changes, message):
    """Even behind a good one, which then isn't there either; nor is the one it would have replaced gone."""
    good = driver.new(0, [4, 5, 6])
    bad = replace(driver.new(2, [4, 5, 6], table=[1]), **changes)
    driver.tokens[0] = undisturbed[0][:21]
    driver.computed[0], driver.tables[0] = 20, list(driver.executor._sequences[0].block_table)
    with pytest.raises(BatchRefused, match=rf"sequence 2: .*{message}"):
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
    result = driver.step(driver.batch(forget=[0]))
    assert (result.step, result.sequence_ids, result.token_ids, result.logprobs) == (2, [], [], [])
    with pytest.raises(BatchRefused, match="unknown sequence 0"):
        driver.executor.step(driver.batch(row_sequence_ids=[0], row_num_tokens=[1]))


def test_a_chunk_that_does_not_reach_the_last_token_samples_nothing(driver):
    result = driver.run({1: 8, 0: 1})
    assert result.sequence_ids == [0]


def test_after_a_failure_inside_only_a_higher_epoch_goes_on(driver, prompt, undisturbed, monkeypatch):
    def out_of_memory(*_):
        raise MemoryError("no memory")

    with monkeypatch.context() as broken:
        broken.setattr(driver.executor._runner.attention, "plan", out_of_memory)
        with pytest.raises(MemoryError):
            driver.run({0: 1})
    with pytest.raises(BatchRefused, match="step 2 of epoch 1 failed"):
        driver.executor.step(StepBatch(epoch=1, step=3))
    driver.epoch, driver.steps = 2, 0
    driver.run({0: 20}, [driver.new(0, prompt(20, seed=1))])
    assert driver.tokens[0] == undisturbed[0][:21]


def test_logprobs_are_aligned_with_the_tokens(driver, prompt):
    asking = driver.new(2, prompt(9, seed=3), SamplingParams(temperature=0, logprobs=2))
    result = driver.run({0: 1, 2: 9}, [asking])
    assert result.logprobs[0] is None
    logprobs = result.logprobs[1]
    assert logprobs is not None
    assert logprobs.top_token_ids[0] == result.token_ids[1]
    assert logprobs.logprob == logprobs.top_logprobs[0] > logprobs.top_logprobs[1]
    assert driver.run({0: 1}).logprobs == []
