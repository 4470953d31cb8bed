"""Bias and penalties: by their definitions, as in `transformers`, and without a trace in what is reported."""

from __future__ import annotations

import random
from array import array
from collections import Counter

import pytest
import torch
import transformers

from executor.sampling.draw import Draw
from executor.sampling.logits_processors import process_logits
from executor.step import Penalties, SamplingParams

_VOCAB = 300


def _logits(rows, seed=0):
    return 4 * torch.randn(rows, _VOCAB, generator=torch.Generator().manual_seed(seed))


def _tokens(count, seed, kinds=40):
    return array("q", random.Random(seed).choices(range(kinds), k=count))


def _processed(logits, *draws):
    result = logits.clone()
    process_logits(result, draws)
    return result


def _draw(row, penalties, tokens=(), output=0, **params):
    return Draw(row, SamplingParams(penalties=penalties, **params), 0, output, tokens)


@pytest.mark.parametrize("penalty", [0.3, 1.2, 9.5])
def test_repetition_penalty_is_that_of_transformers(penalty):
    """Over prompt and output."""
    logits, tokens = _logits(3), [_tokens(60, seed) for seed in range(3)]
    processor = transformers.RepetitionPenaltyLogitsProcessor(penalty)
    expected = processor(torch.tensor([list(each) for each in tokens]), logits)
    draws = [_draw(row, Penalties(repetition=penalty), tokens[row], output=20 * row) for row in range(3)]
    assert torch.equal(_processed(logits, *draws), expected)


def test_presence_and_frequency_count_the_output_alone():
    logits, tokens = _logits(1), _tokens(60, seed=5)
    counts = Counter(tokens[20:])
    assert set(tokens[:20]) - set(counts)
    expected = logits.double()
    for token, count in counts.items():
        expected[0, token] -= 0.7 + 1.3 * count
    found = _processed(logits, _draw(0, Penalties(presence=0.7, frequency=1.3), tokens, output=40))
    assert torch.allclose(found.double(), expected, atol=1e-5)
    rewarded = _processed(logits, _draw(0, Penalties(frequency=-2.0), tokens, output=40))
    assert (rewarded >= logits).all()
    assert torch.equal(_processed(logits, _draw(0, Penalties(presence=2.0, frequency=2.0), tokens)), logits)


def test_bias_is_added_and_comes_first():
    """As transformers' processors do; tokens that the vocabulary has not are passed over."""
    logits, tokens = _logits(1), _tokens(30, seed=6)
    bias = {tokens[0]: 2.5, 100: -100.0, 299: 100.0, 300: 5.0, -1: 5.0}
    expected = logits.clone()
    expected[0, [tokens[0], 100, 299]] += torch.tensor([2.5, -100.0, 100.0])
    assert torch.equal(_processed(logits, _draw(0, Penalties(logit_bias=bias), tokens)), expected)
    penalised = transformers.RepetitionPenaltyLogitsProcessor(1.5)(torch.tensor([list(tokens)]), expected)
    assert torch.equal(_processed(logits, _draw(0, Penalties(repetition=1.5, logit_bias=bias), tokens)), penalised)


def test_rows_do_not_touch_one_another():
    logits = _logits(5)
    draws = [
        _draw(0, None, _tokens(9, 1), output=5),
        _draw(1, Penalties(presence=1.0), _tokens(30, 2), output=10),
        _draw(2, Penalties(repetition=1.4, frequency=0.5), _tokens(50, 3), output=30),
        _draw(3, Penalties(logit_bias={4: 1.0}), _tokens(3, 4), output=1, min_tokens=2, stop_token_ids=(7,)),
        _draw(4, None, _tokens(9, 5), output=5),
    ]
    together = _processed(logits, *draws)
    for row, draw in enumerate(draws):
        assert torch.equal(together[row], _processed(logits[row : row + 1], draw)[0])
    assert torch.equal(together[[0, 4]], logits[[0, 4]])


@pytest.mark.parametrize("temperature", [0.0, 1e-3, 1.0])
def test_a_bias_decides_greedy_and_random_draws(sample, temperature):
    logits = _logits(2)
    draws = [
        _draw(0, Penalties(logit_bias={123: 100.0}), temperature=temperature),
        _draw(1, Penalties(logit_bias={int(logits[1].argmax()): -100.0}), temperature=0.0),
    ]
    tokens, *_ = sample(logits, draws)
    assert tokens == [123, logits[1].topk(2).indices[1].item()]


def test_stop_tokens_stay_masked_whatever_their_bias(sample):
    logits = _logits(1)
    draw = _draw(0, Penalties(repetition=0.1, logit_bias={9: 100.0}), [9], min_tokens=1, stop_token_ids=(9,))
    assert sample(logits, [draw]).token_ids != [9]


@pytest.mark.parametrize("repetition", [1e-45, 1e-30, 10.0])
def test_extreme_penalties_leave_a_distribution(sample, repetition):
    logits, tokens = _logits(2), _tokens(20, 1)
    draws = [_draw(row, Penalties(repetition=repetition), tokens, temperature=row) for row in range(2)]
    sampled, *_ = sample(logits, draws)
    if repetition < 1:
        assert all(token in tokens and logits[row, token] > 0 for row, token in enumerate(sampled))
    assert all(0 <= token < _VOCAB for token in sampled)


def test_reports_are_of_the_models_own_distribution(sample):
    logits, tokens = _logits(1), _tokens(40, 3)
    penalties = Penalties(presence=2.0, frequency=2.0, repetition=5.0, logit_bias={250: 30.0})
    draw = _draw(0, penalties, tokens, output=20, temperature=0.5, top_k=3, logprobs=2)
    draw.ranked = True
    (token,), (report,), (score,) = sample(logits, [draw])
    expected = torch.log_softmax(logits[0], dim=-1)
    assert token == 250
    assert report.logprob == score == pytest.approx(expected[250].item(), abs=1e-5)
    assert report.top_token_ids == expected.topk(2).indices.tolist()


def test_greedy_generation_is_that_of_transformers(llama, load, drive, prompt):
    """Token for token, in chunks and beside others that use none of it, and again after a preemption."""
    tokens, bias = prompt(24, seed=2), {10: 2.0, 20: -3.0}
    output = llama[1].generate(
        torch.tensor([tokens]),
        max_new_tokens=30,
        do_sample=False,
        eos_token_id=None,
        repetition_penalty=1.3,
        sequence_bias=[[[token], value] for token, value in bias.items()],
    )
    expected = output[0, 24:].tolist()
    params = SamplingParams(temperature=0, penalties=Penalties(repetition=1.3, logit_bias=bias))
    driver = drive(load(llama[0]))
    found, other = driver.generate([tokens, prompt(9, seed=3)], 30, [params, SamplingParams(temperature=0)], chunk=10)
    assert found == expected
    assert other == drive(load(llama[0])).generate([prompt(9, seed=3)], 30)[0]
    assert found != drive(load(llama[0])).generate([tokens], 30)[0]

    driver.run({50: 35}, [driver.new(50, tokens + expected[:11], params, prompt_length=24)], forget=[0])
    while len(driver.tokens[50]) < 54:
        driver.run({50: 1})
    assert driver.tokens[50][24:] == expected


def test_penalised_samples_do_not_depend_on_preemption(llama, load, drive, prompt):
    tokens = prompt(20, seed=4)
    params = SamplingParams(temperature=1.2, seed=8, penalties=Penalties(presence=1.5, frequency=0.8))
    driver = drive(load(llama[0]))
    output = driver.generate([tokens], 24, [params])[0]
    assert output != drive(load(llama[0])).generate([tokens], 24, [SamplingParams(temperature=1.2, seed=8)])[0]
    driver.run({50: 30}, [driver.new(50, tokens + output[:10], params, prompt_length=20)], forget=[0])
    while len(driver.tokens[50]) < 44:
        driver.run({50: 1})
    assert driver.tokens[50][20:] == output
