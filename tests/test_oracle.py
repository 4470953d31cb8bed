"""The oracle: right about right steps, and deaf to no wrong one."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from kvmanager.spec import BeamParams
from kvmanager.step import NewSequence, StepBatch, StepResult
from tests.oracle import (
    VOCAB_SIZE,
    Oracle,
    expected_beams,
    expected_best_of,
    expected_output,
    most_likely,
    next_logprobs,
    next_token,
)

BLOCK_SIZE = 4
PROMPT = [3, 1, 4, 1, 5, 9]


@pytest.fixture
def oracle() -> Oracle:
    return Oracle(8, BLOCK_SIZE, random.Random(1), num_host_blocks=4)


def new(sequence_id: int, tokens: list[int], table: list[int], num_computed: int = 0, **options) -> NewSequence:
    return NewSequence(sequence_id, tokens, len(tokens), num_computed, table, "seed", 0, **options)


def run(oracle: Oracle, rows: dict[int, int] | None = None, **fields) -> StepResult:
    """Sends one step and executes it. `rows`: sequence -> tokens to compute."""
    rows = rows or {}
    step = oracle.last_step + 1
    oracle.send(StepBatch(step, row_sequence_ids=list(rows), row_num_tokens=list(rows.values()), **fields))
    result = oracle.run()
    assert result is not None
    return result


def start(oracle: Oracle, **options) -> StepResult:
    """Sequence 1 computes the prompt into blocks 0 and 1."""
    return run(oracle, {1: len(PROMPT)}, new_sequences=[new(1, PROMPT, [0, 1], **options)])


# What it answers


def test_a_sequence_in_chunks_is_the_expected_one(oracle: Oracle) -> None:
    assert run(oracle, {1: 4}, new_sequences=[new(1, PROMPT, [5])]).token_ids == []
    output = run(oracle, {1: 2}, table_edits=[(1, 1, 2)]).token_ids
    while len(output) < 6:
        edits = [(1, 2, 7)] if len(output) == 3 else []
        output += run(oracle, {1: 1}, table_edits=edits).token_ids
    assert output == expected_output(PROMPT, "seed", 0, 6, frozenset())


@pytest.mark.parametrize("split", [0.0, 1.0])
def test_a_row_reads_what_an_earlier_one_writes_in_the_same_step(split: float) -> None:
    oracle = Oracle(8, BLOCK_SIZE, random.Random(1), split=split)
    follower = [*PROMPT[:4], 8]
    started = [new(2, follower, [0, 2], num_computed=4), new(1, PROMPT, [0, 1])]
    result = run(oracle, {1: 6, 2: 1}, new_sequences=started)
    assert result.sequence_ids == [1, 2]
    assert result.token_ids == [next_token(PROMPT, "seed", 0), next_token(follower, "seed", 0)]


def test_a_row_that_reads_what_a_later_one_writes_is_seen() -> None:
    oracle = Oracle(8, BLOCK_SIZE, random.Random(1), split=1.0)
    started = [new(2, [*PROMPT[:4], 8], [0, 2], num_computed=4), new(1, PROMPT, [0, 1])]
    with pytest.raises(AssertionError, match="never written"):
        run(oracle, {2: 1, 1: 6}, new_sequences=started)


def test_forked_children_sample_for_themselves(oracle: Oracle) -> None:
    result = run(oracle, {1: 6}, new_sequences=[new(1, PROMPT, [0, 1], ranked=True)], forks={1: [2, 3]})
    assert result.sequence_ids == [1, 2, 3]
    assert result.token_ids == [next_token(PROMPT, "seed", index) for index in range(3)]
    assert result.scores == [next_logprobs(PROMPT, "seed")[token] for token in result.token_ids]
    copied = run(oracle, {1: 1, 2: 1}, table_edits=[(2, 1, 2)], block_copies=[(1, 2)])  # both write, 2 in a copy
    assert copied.token_ids == [expected_output(PROMPT, "seed", index, 2, frozenset())[1] for index in range(2)]


def test_beams_report_candidates_and_go_on_with_chosen_tokens(oracle: Oracle) -> None:
    first = start(oracle, num_candidates=4)
    assert not first.token_ids
    assert first.candidates == {1: most_likely(next_logprobs(PROMPT, "seed"), 4)}
    best, second = first.candidates[1][0][:2]
    result = run(
        oracle,
        {1: 1, 2: 1},
        branches=[(1, 2)],
        chosen_tokens=[(1, best), (2, second)],
        table_edits=[(2, 1, 2)],
        block_copies=[(1, 2)],
    )
    for sequence_id, token in ((1, best), (2, second)):
        assert result.candidates[sequence_id] == most_likely(next_logprobs([*PROMPT, token], "seed"), 4)


def test_a_context_survives_the_way_to_the_host_and_back(oracle: Oracle) -> None:
    tokens = PROMPT + start(oracle).token_ids
    run(oracle, forget=[1], swaps_out=[(0, 3), (1, 0)])
    run(oracle, {9: 8}, new_sequences=[new(9, [7] * 8, [0, 1])])
    result = run(oracle, {1: 1}, new_sequences=[new(1, tokens, [4, 5], 6)], swaps_in=[(3, 4), (0, 5)])
    assert result.token_ids == [next_token(tokens, "seed", 0)]


def test_swaps_out_come_before_swaps_in_and_those_before_copies_and_writes(oracle: Oracle) -> None:
    tokens = PROMPT + start(oracle).token_ids
    result = run(
        oracle,
        {1: 1, 9: 4},
        new_sequences=[new(1, tokens, [3, 1], 6), new(9, [7] * 4, [0])],
        swaps_out=[(0, 2)],
        swaps_in=[(2, 0)],
        block_copies=[(0, 3)],
    )
    assert result.token_ids[0] == next_token(tokens, "seed", 0)


def test_logprobs_are_a_distribution_that_the_whole_context_decides() -> None:
    logprobs = next_logprobs(PROMPT, 1)
    assert math.fsum(map(math.exp, logprobs)) == pytest.approx(1)
    assert max(logprobs) - min(logprobs) > 5
    assert logprobs == next_logprobs(list(PROMPT), 1)
    assert all(logprobs != next_logprobs(other, 1) for other in (PROMPT[1:], [2, *PROMPT[1:]], [*PROMPT, 0]))
    assert most_likely([-2.0, -1.0, -2.0, -1.0], 3) == ([1, 3, 0], [-1.0, -1.0, -2.0])


def test_best_of_returns_the_most_likely_sequences() -> None:
    best = expected_best_of(PROMPT, "seed", 2, 5, 4, frozenset())
    everything = expected_best_of(PROMPT, "seed", 5, 5, 4, frozenset())
    outputs = [expected_output(PROMPT, "seed", index, 4, frozenset()) for index in range(5)]
    assert sorted(each.token_ids for each in everything) == sorted(outputs)
    assert best == everything[:2]
    assert [each.score for each in everything] == sorted((each.score for each in everything), reverse=True)


def test_wide_enough_beams_find_the_most_likely_output() -> None:
    def score(output: tuple[int, ...]) -> float:
        return sum(next_logprobs([*PROMPT, *output[:i]], "seed")[token] for i, token in enumerate(output))

    everything = sorted(itertools.product(range(VOCAB_SIZE), repeat=2), key=score, reverse=True)
    beams = expected_beams(PROMPT, "seed", BeamParams(VOCAB_SIZE, length_penalty=0.0), 2, frozenset(), n=3)
    assert [tuple(beam.token_ids) for beam in beams] == everything[:3]
    assert [beam.score for beam in beams] == pytest.approx([score(output) for output in everything[:3]])


# What it refuses


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"forget": [7]}, "not known"),
        ({"branches": [(7, 8)]}, "not known"),
        ({"branches": [(1, 1)]}, "exists already"),
        ({"chosen_tokens": [(1, 0)]}, "samples by itself"),
        ({"rows": {7: 1}}, "not known"),
        ({"rows": {1: 2}}, "do not exist"),
        ({"rows": {1: 1}, "forks": {1: [1]}}, "exists already"),
        ({"forks": {1: [2]}}, "does not sample"),
        ({"table_edits": [(7, 0, 0)]}, "not known"),
        ({"table_edits": [(1, 3, 2)]}, "gap"),
        ({"table_edits": [(1, 2, 8)]}, "not in the pool"),
        ({"swaps_out": [(0, 4)]}, "not in the pool"),
        ({"swaps_out": [(0, 1), (1, 1)]}, "two copies"),
        ({"swaps_in": [(4, 0)]}, "not in the pool"),
        ({"block_copies": [(0, 2), (1, 2)]}, "two copies"),
        ({"block_copies": [(0, 2), (2, 3)]}, "order"),
        ({"new_sequences": [new(2, [50], [2])]}, "vocabulary"),
        ({"new_sequences": [new(2, [5], [2], num_computed=1)]}, "nothing is left"),
        ({"new_sequences": [new(2, [5] * 5, [2])], "rows": {2: 5}}, "exceeds its block table"),
        # A wrong place, though the tokens there are the same:
        ({"new_sequences": [new(2, [7, *PROMPT[1:], 5], [0, 1], 6)], "rows": {2: 1}}, "another context"),
        ({"new_sequences": [new(2, [*PROMPT[:4], 9], [2], 4)], "rows": {2: 1}, "table_edits": [(2, 1, 3)]}, "never"),
        ({"swaps_in": [(0, 0)], "rows": {1: 1}}, "never written"),
        ({"table_edits": [(1, 1, 3)], "rows": {1: 1}}, "never written"),  # a copy is missing
    ],
)
def test_wrong_steps_are_refused(oracle: Oracle, fields: dict, message: str) -> None:
    start(oracle)
    with pytest.raises(AssertionError, match=message):
        run(oracle, **fields)


def test_a_missed_copy_on_write_is_seen(oracle: Oracle) -> None:
    run(oracle, {1: 6}, new_sequences=[new(1, PROMPT, [0, 1])], forks={1: [2]})
    with pytest.raises(AssertionError, match="another context"):
        run(oracle, {1: 1, 2: 1})


def test_a_beam_does_not_run_without_a_chosen_token(oracle: Oracle) -> None:
    start(oracle, num_candidates=2)
    with pytest.raises(AssertionError, match="do not exist"):
        run(oracle, {1: 1})


def test_a_token_is_chosen_once_for_each_report(oracle: Oracle) -> None:
    start(oracle, num_candidates=2)
    with pytest.raises(AssertionError, match="not reported"):
        run(oracle, chosen_tokens=[(1, 0), (1, 1)])


def test_a_gap_in_steps_is_refused(oracle: Oracle) -> None:
    oracle.send(StepBatch(2))
    with pytest.raises(AssertionError, match="gap"):
        oracle.run()


# How it fails


def test_it_stalls_as_long_as_told(oracle: Oracle) -> None:
    oracle.send(StepBatch(1))
    oracle.stall(2)
    assert [oracle.run(), oracle.run()] == [None, None]
    assert oracle.run() == StepResult(1, [], [])


def test_a_loss_leaves_nothing(oracle: Oracle) -> None:
    tokens = PROMPT + start(oracle).token_ids
    oracle.send(StepBatch(2))
    oracle.lose()
    assert not oracle.sequences
    assert not oracle.pending
    with pytest.raises(AssertionError, match="never written"):
        run(oracle, {1: 1}, new_sequences=[new(1, tokens, [0, 1], 6)])
    oracle.lose()
    assert start(oracle).token_ids == [next_token(PROMPT, "seed", 0)]


def test_every_token_is_in_reach() -> None:
    seen = {next_token(PROMPT, seed, 0) for seed in range(2000)}
    assert seen == set(range(VOCAB_SIZE))
