"""The batched samplers, in torch and native, against a plain one, written token by token."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
import torch

from executor.sampling.draw import Draw
from executor.sampling.random_stream import uniform
from executor.step import SamplingParams

_VOCAB = 2000


def _logits(rows, seed=0, spread=3.0, vocab=_VOCAB):
    return spread * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def _plain_distribution(logits, params):
    """Probability of each token, by the definitions."""
    scaled = [value / params.temperature for value in logits.tolist()]
    largest = max(scaled)
    weights = [math.exp(value - largest) for value in scaled]
    total = sum(weights)
    probabilities = [weight / total for weight in weights]
    order = sorted(range(len(probabilities)), key=lambda token: (-probabilities[token], token))
    if params.top_k:
        order = order[: params.top_k]
    mass = sum(probabilities[token] for token in order)
    kept, so_far = [], 0.0
    for token in order:
        if so_far >= params.top_p * mass:
            break
        kept.append(token)
        so_far += probabilities[token]
    kept = [token for token in kept if probabilities[token] >= params.min_p * probabilities[order[0]]]
    mass = sum(probabilities[token] for token in kept)
    return {token: probabilities[token] / mass for token in kept}


_PARAMS = {
    "plain": SamplingParams(),
    "hot": SamplingParams(temperature=3.0),
    "cold": SamplingParams(temperature=0.2),
    "top-k": SamplingParams(top_k=7),
    "top-k 1": SamplingParams(top_k=1),
    "top-k beyond the vocabulary": SamplingParams(top_k=10 * _VOCAB),
    "top-p": SamplingParams(top_p=0.8),
    "top-p tiny": SamplingParams(top_p=1e-6),
    "top-p of a flat distribution": SamplingParams(temperature=50.0, top_p=0.9),
    "min-p": SamplingParams(min_p=0.1),
    "min-p 1": SamplingParams(min_p=1.0),
    "all": SamplingParams(temperature=1.3, top_k=50, top_p=0.9, min_p=0.02),
}


@pytest.mark.parametrize("params", _PARAMS.values(), ids=_PARAMS.keys())
def test_each_number_picks_the_token_of_the_inverse_distribution(sample, params):
    """Drawn among neighbours of every other kind, which must not matter."""
    logits = _logits(4)
    neighbours = [Draw(3, other, 0, 0) for other in (*_PARAMS.values(), SamplingParams(temperature=0))]
    draws = [Draw(row, params, sample_index=2, output_position=n) for row in range(3) for n in range(40)]
    tokens, logprobs, _ = sample(logits, [*draws, *neighbours])
    assert logprobs == []
    distributions = [_plain_distribution(logits[row], params) for row in range(3)]
    for draw, token in zip(draws, tokens, strict=False):
        distribution = distributions[draw.row]
        assert token in distribution
        # u lies in the token's own interval of the cumulative distribution in order of ids.
        below = sum(p for other, p in distribution.items() if other < token)
        u = uniform(params.seed, 2, draw.output_position)
        assert below - 1e-5 <= u <= below + distribution[token] + 1e-5
        assert sample(logits, [draw])[0] == [token]


def test_frequencies_follow_the_distribution(sample):
    logits = _logits(1, vocab=8, spread=1.0)
    params = SamplingParams(temperature=0.9, top_k=6, top_p=0.95, seed=5)
    count = 20000
    tokens, *_ = sample(logits, [Draw(0, params, 0, position) for position in range(count)])
    seen = Counter(tokens)
    expected = _plain_distribution(logits[0], params)
    assert set(seen) == set(expected)
    for token, probability in expected.items():
        deviation = math.sqrt(count * probability * (1 - probability))
        assert abs(seen[token] - count * probability) < 5 * deviation


def test_greedy_rows_are_argmax_also_in_a_mixed_batch(sample):
    logits = _logits(6, seed=1)
    logits[2, 40] = logits[2, 900] = logits[2].max() + 1  # a tie: the lower id
    best = logits.argmax(dim=-1).tolist()
    greedy = [Draw(row, SamplingParams(temperature=0, top_k=3, top_p=0.1), 0, 0) for row in range(6)]
    assert sample(logits, greedy)[0] == best
    assert best[2] == 40
    hot = [Draw(row, SamplingParams(temperature=5.0), 0, 0) for row in range(6)]
    mixed = [draw for pair in zip(greedy, hot, strict=True) for draw in pair]
    assert sample(logits, mixed)[0][::2] == best


def test_equally_likely_tokens_are_counted_one_by_one(sample):
    logits = torch.zeros(1, 8)
    for params, kept in (
        (SamplingParams(top_k=3), {0, 1, 2}),
        (SamplingParams(top_p=0.5), {0, 1, 2, 3}),
        (SamplingParams(top_k=4, top_p=0.5), {0, 1}),
    ):
        tokens, *_ = sample(logits, [Draw(0, params, 0, position) for position in range(300)])
        assert set(tokens) == kept


def test_a_nucleus_larger_than_what_is_looked_at_first(sample):
    """Flat over 5,000 tokens: half the mass is 2,500 tokens, whatever the neighbours ask for."""
    logits = torch.zeros(1, 5000)
    half = [Draw(0, SamplingParams(top_p=0.5), 0, position) for position in range(400)]
    alone, *_ = sample(logits, half)
    assert 2300 < max(alone) < 2500
    beside, *_ = sample(logits, [*half, Draw(0, SamplingParams(top_k=3, top_p=0.2), 0, 0)])
    assert beside[:-1] == alone


@pytest.mark.parametrize("temperature", [1e-45, 1e-10, 1e30])
def test_extreme_temperatures(sample, temperature):
    logits = _logits(3, spread=1e4)
    tokens, *_ = sample(logits, [Draw(row, SamplingParams(temperature=temperature), 0, 0) for row in range(3)])
    assert all(0 <= token < _VOCAB for token in tokens)
    if temperature < 1:
        assert tokens == logits.argmax(dim=-1).tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_stop_tokens_wait_for_min_tokens(sample, temperature):
    logits = torch.zeros(2, 10)
    logits[:, 4] = 50
    logits[:, 7] = 40
    params = SamplingParams(temperature=temperature, min_tokens=3, stop_token_ids=(4, 99999))
    before = logits.clone()
    assert sample(logits, [Draw(0, params, 0, 2), Draw(1, params, 0, 3)])[0] == [7, 4]
    assert torch.equal(logits, before)


def test_logprobs_are_those_of_the_raw_logits(sample):
    logits = _logits(2)
    masked = SamplingParams(temperature=0, logprobs=3, min_tokens=1, stop_token_ids=(int(logits[1].argmax()),))
    draws = [
        Draw(0, SamplingParams(temperature=5.0, top_k=2, logprobs=0), 0, 0),
        Draw(0, SamplingParams(temperature=0), 0, 0),
        Draw(1, masked, 0, 0),
        Draw(1, SamplingParams(temperature=0, logprobs=10**6), 0, 0),
    ]
    tokens, logprobs, _ = sample(logits, draws)
    expected = torch.log_softmax(logits.double(), dim=-1)
    assert logprobs[1] is None
    for draw, token, entry in zip(draws, tokens, logprobs, strict=True):
        if entry is None:
            continue
        assert entry.logprob == pytest.approx(expected[draw.row, token].item(), abs=1e-4)
        best = expected[draw.row].topk(min(draw.sampling.logprobs, _VOCAB))
        assert entry.top_token_ids[:5] == best.indices.tolist()[:5]
        assert entry.top_logprobs == pytest.approx(best.values.tolist(), abs=1e-4)
    assert logprobs[0].top_token_ids == []
    assert len(logprobs[3].top_token_ids) == _VOCAB
    assert tokens[2] != tokens[3] == logprobs[2].top_token_ids[0]


def test_the_random_stream_is_uniform_and_keyed_by_all_three():
    numbers = [uniform(1, 0, position) for position in range(20000)]
    assert all(0 <= number < 1 for number in numbers)
    counts = Counter(int(number * 10) for number in numbers)
    assert all(abs(count - 2000) < 5 * math.sqrt(1800) for count in counts.values())
    keys = [(seed, index, position) for seed in (0, 1, 2**63, -1) for index in (0, 1) for position in (0, 1, 2)]
    random.Random(0).shuffle(keys)
    assert len({uniform(*key) for key in keys}) == len(keys)


def test_the_random_stream_never_changes():
    """Fixed for good: another process, version or machine continues a sequence with the same numbers."""
    assert [uniform(42, 0, 0), uniform(42, 1, 7), uniform(-5, 0, 3)] == [
        0.127800788776263,
        0.041368867471240134,
        0.45932436470436877,
    ]
