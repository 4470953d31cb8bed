"""What a guide allows is what is sampled, whatever the logits are, by the samplers in torch and in native code."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from executor.sampling.draw import Draw
from executor.step import Penalties, SamplingParams

_PARAMS = {
    "greedy": SamplingParams(temperature=0),
    "plain": SamplingParams(),
    "hot": SamplingParams(temperature=50.0),
    "cold": SamplingParams(temperature=1e-40),
    "top-k": SamplingParams(top_k=3),
    "top-p": SamplingParams(top_p=0.5),
    "min-p": SamplingParams(min_p=0.5),
    "penalties": SamplingParams(
        penalties=Penalties(presence=2.0, frequency=1.0, repetition=1.5, logit_bias={3: 100.0})
    ),
    "all": SamplingParams(temperature=1.3, top_k=50, top_p=0.9, min_p=0.02, logprobs=2),
}


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    torch.manual_seed(seed)
    return random.Random(seed)


def _mask(rng, vocab, share):
    """At least one token; and the bits of it."""
    tokens = [token for token in range(vocab) if rng.random() < share] or [rng.randrange(vocab)]
    bits = np.zeros(-(-vocab // 32) * 32, np.uint8)
    bits[tokens] = 1
    return tokens, np.packbits(bits, bitorder="little").view(np.int32)


@pytest.mark.parametrize("params", _PARAMS.values(), ids=_PARAMS)
def test_the_token_is_the_one_that_the_allowed_logits_alone_would_give(sample, rng, params):
    for vocab in (33, 300, 2000):
        logits = 3 * torch.randn(4, vocab)
        draws, expected = [], []
        for row in range(4):
            tokens, allowed = _mask(rng, vocab, rng.choice([0, 0.01, 0.5, 1]))
            seeded = replace(params, seed=rng.getrandbits(60))
            draws.append(Draw(row, seeded, 0, 2, [5, 7, 5, 9], allowed=allowed))
            alone = torch.full((1, vocab), -torch.inf)
            alone[0, tokens] = logits[row, tokens]
            expected += sample(alone, [replace(draws[-1], row=0, allowed=None)]).token_ids
        before = logits.clone()
        assert sample(logits, draws).token_ids == expected
        assert torch.equal(logits, before)


@pytest.mark.parametrize("params", _PARAMS.values(), ids=_PARAMS)
def test_no_logits_make_it_choose_another(sample, rng, params):
    vocab = 300
    logits = torch.randn(6, vocab)
    logits[0] = torch.nan
    logits[1] = -torch.inf
    logits[2] = torch.inf
    logits[3, ::2] = torch.nan
    logits[4] = torch.finfo(torch.float32).max
    logits[5] = torch.finfo(torch.float32).min
    draws, allowed_tokens = [], []
    for row in range(6):
        tokens, allowed = _mask(rng, vocab, 0.01)
        logits[row, [token for token in range(vocab) if token not in tokens][:50]] = torch.inf
        draws.append(Draw(row, replace(params, seed=rng.getrandbits(60)), 0, 2, [5, 7, 5, 9], allowed=allowed))
        allowed_tokens.append(tokens)
    for token, tokens in zip(sample(logits, draws).token_ids, allowed_tokens, strict=True):
        assert token in tokens


def test_others_in_the_batch_are_left_alone(sample, rng):
    logits = 3 * torch.randn(8, 500)
    draws = [Draw(row, SamplingParams(seed=rng.getrandbits(60), logprobs=3), 0, 0) for row in range(8)]
    alone = sample(logits, draws)
    mixed = [replace(draw, allowed=_mask(rng, 500, 0.02)[1]) if draw.row % 2 else draw for draw in draws]
    batched = sample(logits, mixed)
    assert batched.token_ids[::2] == alone.token_ids[::2]
    for row in range(0, 8, 2):
        assert batched.logprobs[row] == alone.logprobs[row]


def test_log_probabilities_are_those_of_the_model_whatever_is_allowed(sample, rng):
    logits = 3 * torch.randn(1, 500)
    _, allowed = _mask(rng, 500, 0.01)
    sampled = sample(logits, [Draw(0, SamplingParams(logprobs=2), 0, 0, ranked=True, allowed=allowed)])
    logprobs = torch.log_softmax(logits[0].double(), dim=-1)
    assert sampled.logprobs[0].logprob == pytest.approx(logprobs[sampled.token_ids[0]].item(), abs=1e-4)
    assert sampled.scores == [pytest.approx(sampled.logprobs[0].logprob)]
    assert sampled.logprobs[0].top_token_ids == logprobs.topk(2).indices.tolist()
