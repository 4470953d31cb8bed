"""Sequences that report candidates: as `transformers` processes them, and on branches as if computed afresh."""

from __future__ import annotations

import random

import pytest
import torch
import transformers

from executor.sampling.draw import Draw
from executor.sampling.largest import largest
from executor.step import Penalties, SamplingParams

_PLAIN = SamplingParams()


def _logprobs(model, tokens):
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([tokens])).logits[0, -1].float(), dim=-1)


def test_candidates_are_the_most_likely_tokens(llama, load, drive, prompt):
    """In a step with others that sample; temperature and truncation have no part in it."""
    cold = SamplingParams(temperature=0.01, top_k=1)
    prompts = [prompt(20, seed=1), prompt(7, seed=2), prompt(33, seed=3)]
    driver = drive(load(llama[0]))
    new = [
        driver.new(0, prompts[0], cold, num_candidates=12),
        driver.new(1, prompts[1]),
        driver.new(2, prompts[2], num_candidates=200),
    ]
    result = driver.run({0: 20, 1: 7, 2: 33}, new)
    assert result.sequence_ids == [1]
    assert [candidates.sequence_id for candidates in result.candidates] == [0, 2]
    for candidates, tokens, count in zip(result.candidates, (prompts[0], prompts[2]), (12, 96), strict=True):
        expected = _logprobs(llama[1], tokens).topk(count)
        assert candidates.token_ids == expected.indices.tolist()
        assert candidates.logprobs == pytest.approx(expected.values.tolist(), abs=1e-4)


def test_a_chunk_that_does_not_reach_the_last_token_reports_nothing(llama, load, drive, prompt):
    driver = drive(load(llama[0]))
    assert driver.run({0: 5}, [driver.new(0, prompt(20, seed=1), num_candidates=2)]).candidates == []
    assert len(driver.run({0: 15}).candidates) == 1


def test_branches_compute_what_their_tokens_alone_would(llama, load, drive, prompt):
    """Four beams that split, die and share blocks at random, copying a shared one before they write to it: their
    candidates are those of a sequence with the same tokens, computed at once, and those of transformers.
    """
    rng = random.Random(7)
    block_size = 4
    driver = drive(load(llama[0], block_size=block_size))
    tokens = prompt(10, seed=1)
    result = driver.run({0: 10}, [driver.new(0, tokens, num_candidates=8)])
    alive, next_id = {0: result.candidates[0]}, 1
    for _ in range(12):
        parents = sorted(rng.choices(list(alive), k=4))
        branches, chosen, forgotten = [], [], set(alive) - set(parents)
        successors = {}
        for i, parent in enumerate(parents):
            token = rng.choice(alive[parent].token_ids)
            sequence_id = parent
            if i and parents[i - 1] == parent:
                sequence_id, next_id = next_id, next_id + 1
                branches.append((parent, sequence_id))
                driver.computed[sequence_id] = driver.computed[parent]
                driver.tables[sequence_id] = list(driver.tables[parent])
            successors[sequence_id] = (parent, token)
            chosen.append((sequence_id, token))
        before = {sequence_id: list(driver.tokens[parent]) for sequence_id, (parent, _) in successors.items()}
        for sequence_id, (_, token) in successors.items():
            driver.tokens[sequence_id] = [*before[sequence_id], token]
        edits, copies = _own_last_blocks(driver, [*successors], block_size)
        batch = driver.batch(
            forget=sorted(forgotten),
            branches=branches,
            chosen_tokens=chosen,
            table_edits=edits,
            block_copies=copies,
            row_sequence_ids=[*successors],
            row_num_tokens=[1] * len(successors),
        )
        result = driver.step(batch)
        assert result.token_ids == []
        alive = {candidates.sequence_id: candidates for candidates in result.candidates}
        assert list(alive) == list(successors)

    for candidates in alive.values():
        sequence = driver.tokens[candidates.sequence_id]
        assert len(sequence) == 22
        again = driver.run({99: 22}, [driver.new(99, sequence, prompt_length=10, num_candidates=8)])
        for expected in (again.candidates[0].logprobs, _logprobs(llama[1], sequence).topk(8).values.tolist()):
            assert candidates.logprobs == pytest.approx(expected, abs=1e-4)
        assert candidates.token_ids == again.candidates[0].token_ids


def _own_last_blocks(driver, sequence_ids, block_size):
    """Gives each sequence a block of its own for its next token: a new one, or a copy of one that is shared."""
    edits, copies, taken = [], [], set()
    for sequence_id in sequence_ids:
        table, index = driver.tables[sequence_id], driver.computed[sequence_id] // block_size
        if index == len(table):
            table.append(driver.free.pop())
        elif table[index] in taken:
            copies.append((table[index], driver.free.pop()))
            table[index] = copies[-1][1]
        else:
            taken.add(table[index])
            continue
        edits.append((sequence_id, index, table[index]))
    return edits, copies


def test_a_branch_of_a_sampling_sequence_draws_the_same_numbers(llama, load, drive, prompt):
    driver = drive(load(llama[0]))
    driver.run({0: 20}, [driver.new(0, prompt(20, seed=1), SamplingParams(temperature=2.0, seed=5))])
    driver.tokens[1], driver.computed[1] = list(driver.tokens[0]), 20
    driver.tables[1] = [driver.tables[0][0], driver.free.pop()]
    copy = (driver.tables[0][1], driver.tables[1][1])
    edit = (1, 1, driver.tables[1][1])
    batch = driver.batch(
        branches=[(0, 1)], table_edits=[edit], block_copies=[copy], row_sequence_ids=[0, 1], row_num_tokens=[1, 1]
    )
    driver.step(batch)
    driver.run({0: 1, 1: 1})
    assert driver.tokens[0] == driver.tokens[1]


def test_ties_go_to_lower_ids(most_likely):
    logits = torch.zeros(3, 5000)
    logits[0, [7, 4000]] = 1
    logits[1] = torch.arange(5000) % 2
    draws = [Draw(row, _PLAIN, 0, 0) for row in (2, 0, 1, 0)]
    found = [tokens for tokens, _ in most_likely(logits, draws, [4, 4, 4, 1])]
    assert found == [[0, 1, 2, 3], [7, 4000, 0, 1], [1, 3, 5, 7], [7]]


@pytest.mark.parametrize("count", [1, 3, 50])
def test_largest_is_a_stable_sort(count):
    values = torch.randint(0, 12, (20, 50), generator=torch.Generator().manual_seed(count)).float()
    values[3] = -torch.inf
    values[4, 10:] = -torch.inf
    expected = values.sort(dim=-1, descending=True, stable=True)
    found, ids = largest(values, count)
    assert ids.tolist() == expected.indices[:, :count].tolist()
    assert found.tolist() == expected.values[:, :count].tolist()


def test_candidates_are_processed_as_in_transformers(most_likely):
    """There the processors of beam search act on log probabilities: bias, repetition penalty, fewest tokens."""
    logits = 4 * torch.randn(2, 300, generator=torch.Generator().manual_seed(0))
    tokens = [[5, 9, 9, 250, 31], [8, 8, 8, 44, 5]]
    bias = {9: 3.5, 44: -2.0, 100: 6.0, 8: 2.0}
    params = SamplingParams(min_tokens=3, stop_token_ids=(100, 7), penalties=Penalties(repetition=1.7, logit_bias=bias))
    processors = transformers.LogitsProcessorList(
        [
            transformers.SequenceBiasLogitsProcessor([[[token], value] for token, value in bias.items()]),
            transformers.RepetitionPenaltyLogitsProcessor(1.7),
            transformers.MinNewTokensLengthLogitsProcessor(3, 3, [100, 7], device="cpu"),
        ]
    )
    expected = processors(torch.tensor(tokens), torch.log_softmax(logits, dim=-1))
    draws = [Draw(row, params, 0, output_position=2, token_ids=tokens[row]) for row in range(2)]
    for row, (found, logprobs) in enumerate(most_likely(logits, draws, [290, 290])):
        assert logprobs == pytest.approx(expected[row, found].tolist(), abs=1e-5)
        assert logprobs == pytest.approx(expected[row].topk(290).values.tolist(), abs=1e-5)
        assert not {100, 7} & set(found)


def test_a_row_without_numbers_harms_nobody(most_likely):
    logits = torch.randn(2, 50)
    logits[0] = torch.nan
    (lost, _), (fine, _) = most_likely(logits, [Draw(row, _PLAIN, 0, 0) for row in range(2)], [3, 3])
    assert len(lost) == 3
    assert fine == logits[1].topk(3).indices.tolist()
