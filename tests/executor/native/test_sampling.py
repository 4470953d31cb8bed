"""The native sampler against the one in torch, and what it promises beyond: see also test_sampler.py and its siblings,
which run on both.
"""

from __future__ import annotations

import itertools
import random
from array import array
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from executor.native import Crew, Library, load_library
from executor.native.library import runnable_levels
from executor.native.sampling import NativeSampler
from executor.sampling.random_stream import uniform
from executor.sampling.samplers import TorchSampler
from executor.sequences import SequenceState
from executor.step import Penalties, SamplingParams

LEVELS = runnable_levels()
pytestmark = pytest.mark.skipif(not LEVELS, reason="the kernels were not built here, or none runs here")

# Around the width of a vector and of a group of 64 vectors.
VOCABULARIES = [1, 7, 16, 17, 96, 300, 1023, 1024, 1025, 5000]


@pytest.fixture(params=LEVELS)
def library(request: pytest.FixtureRequest) -> Library:
    return load_library(request.param)


@pytest.fixture
def make(library: Library) -> Callable[..., NativeSampler]:
    def make(vocab_size: int, threads: int = 2) -> NativeSampler:
        return NativeSampler(library, Crew(library, threads), vocab_size)

    return make


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    torch.manual_seed(seed)
    return random.Random(seed)


def _sequence(sampling: SamplingParams, tokens=(), prompt_length: int = 0, **fields) -> SequenceState:
    return SequenceState(
        sequence_id=0,
        token_ids=array("q", tokens),
        prompt_length=prompt_length,
        num_computed=0,
        block_table=array("q"),
        sampling=sampling,
        **({"sample_index": 0} | fields),
    )


def _random_penalties(rng: random.Random, vocab_size: int) -> Penalties:
    biased = rng.sample(range(-1, vocab_size + 1), rng.choice([0, 2]))
    return Penalties(
        presence=rng.choice([0.0, 0.5]),
        frequency=rng.choice([0.0, 0.3, -1.0]),
        repetition=rng.choice([1.0, 0.7, 1.3]),
        logit_bias={token: rng.uniform(-5, 5) for token in biased},
    )


def _random_sampling(rng: random.Random, vocab_size: int) -> SamplingParams:
    return SamplingParams(
        temperature=rng.choice([0.0, 0.3, 1.0, 1.0, 4.0, 1e-40]),
        top_p=rng.choice([1.0, 1.0, 0.9, 0.5, 0.01, 0.999]),
        top_k=rng.choice([0, 0, 1, 5, 50, 1000, 10**6]),
        min_p=rng.choice([0.0, 0.0, 0.05, 1.0]),
        seed=rng.getrandbits(60),
        logprobs=rng.choice([None, None, 0, 3]),
        min_tokens=rng.choice([0, 5, 100]),
        stop_token_ids=tuple(rng.sample(range(vocab_size), min(2, vocab_size))),
        penalties=rng.choice([None, _random_penalties(rng, vocab_size)]),
    )


def _random_sequence(rng: random.Random, vocab_size: int) -> SequenceState:
    tokens = rng.choices(range(vocab_size), k=60)
    sampling = _random_sampling(rng, vocab_size)
    ranked = rng.random() < 0.2
    return _sequence(sampling, tokens, rng.randint(1, 60), sample_index=rng.randrange(3), ranked=ranked)


def _random_logits(rng: random.Random, rows: int, vocab_size: int) -> torch.Tensor:
    spread = rng.choice([0.5, 3.0, 8.0])
    logits = spread * torch.randn(rows, vocab_size)
    return logits.round() if spread > 1 and rng.random() < 0.3 else logits


def _is_next_to(logits: torch.Tensor, sequence: SequenceState, token: int) -> bool:
    """Whether torch gives the token, too, with a random number or a nucleus that differs by a rounding.

    Args:
        logits: the sequence's row, [1, vocab].
    """
    sampling = sequence.sampling
    number = uniform(sampling.seed, sequence.sample_index, sequence.num_output_tokens)
    for shift, growth in itertools.product((0.0, -1e-5, 1e-5), (0.0, -1e-6, 1e-6)):
        shifted = min(max(number + shift, 0.0), 1 - 2**-53)
        similar = sequence.fork(0, sequence.sample_index)
        similar.sampling = replace(sampling, top_p=sampling.top_p + growth)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("executor.sampling.sampler.uniform", lambda *_, shifted=shifted: shifted)
            if TorchSampler().sample(logits, [0], [similar]).finish().token_ids == [token]:
                return True
    return False


@pytest.mark.parametrize("vocab_size", VOCABULARIES)
def test_the_same_numbers_give_the_same_tokens_as_in_torch(make, rng, vocab_size):
    """Of every kind of draw side by side, several of them from one row."""
    native, reference = make(vocab_size), TorchSampler()
    different = 0
    for _ in range(4):
        logits = _random_logits(rng, 6, vocab_size)
        before = logits.clone()
        sequences = [_random_sequence(rng, vocab_size) for _ in range(24)]
        rows = [rng.randrange(6) for _ in sequences]
        found = native.sample(logits, rows, sequences).finish()
        expected = reference.sample(logits, rows, sequences).finish()
        assert torch.equal(logits, before)
        for row, sequence, token, other in zip(rows, sequences, found.token_ids, expected.token_ids, strict=True):
            if token != other:
                different += 1
                assert _is_next_to(logits[row : row + 1], sequence, token), sequence.sampling
        if found.token_ids == expected.token_ids:
            assert found.scores == pytest.approx(expected.scores, abs=1e-5)
            for report, wanted in zip(found.logprobs, expected.logprobs, strict=True):
                assert (report is None) == (wanted is None)
                if report is not None:
                    assert report.logprob == pytest.approx(wanted.logprob, abs=1e-5)
                    assert report.top_logprobs == pytest.approx(wanted.top_logprobs, abs=1e-5)
    assert different <= 2


@pytest.mark.parametrize("vocab_size", VOCABULARIES)
def test_candidates_are_those_of_torch(make, rng, vocab_size):
    logits = _random_logits(rng, 4, vocab_size)
    sequences = [_random_sequence(rng, vocab_size) for _ in range(12)]
    rows = [rng.randrange(4) for _ in sequences]
    for sequence in sequences:
        sequence.num_candidates = rng.choice([1, 4, 100, 10**6])
    found = make(vocab_size).candidates(logits, rows, sequences)()
    expected = TorchSampler().candidates(logits, rows, sequences)()
    everything = [sequence.fork(0, 0) for sequence in sequences]
    for sequence in everything:
        sequence.num_candidates = vocab_size
    lists = TorchSampler().candidates(logits, rows, everything)()
    for (tokens, logprobs), (_, wanted), whole in zip(found, expected, lists, strict=True):
        assert logprobs == pytest.approx(wanted, abs=1e-4)
        assert len(set(tokens)) == len(tokens)
        of_token = dict(zip(*whole, strict=True))
        assert logprobs == pytest.approx([of_token[token] for token in tokens], abs=1e-4)


def test_logprobs_of_equally_likely_tokens_come_in_the_order_of_ids(make):
    logits = (torch.arange(3000) % 3).float()[None]
    sequence = _sequence(SamplingParams(temperature=0, logprobs=1100))
    (token,), (report,), _ = make(3000).sample(logits, [0], [sequence]).finish()
    assert token == 2
    assert report.top_token_ids == [*range(2, 3000, 3), *range(1, 300, 3)]
    assert report.top_logprobs == sorted(report.top_logprobs, reverse=True)


def test_a_draw_does_not_depend_on_its_neighbours_nor_on_the_threads(make, rng):
    """Bit by bit."""
    vocab_size = 2000
    logits = _random_logits(rng, 8, vocab_size)
    sequences = [_random_sequence(rng, vocab_size) for _ in range(40)]
    rows = [rng.randrange(8) for _ in sequences]
    together = make(vocab_size, threads=2).sample(logits, rows, sequences).finish()
    alone = make(vocab_size, threads=1)
    for i, (row, sequence) in enumerate(zip(rows, sequences, strict=True)):
        token, report, score = alone.sample(logits[row : row + 1].clone(), [0], [sequence]).finish()
        assert token == [together.token_ids[i]]
        if report:
            assert report == [together.logprobs[i]]
        if score:
            assert score == [together.scores[i]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_logits_that_are_no_numbers_harm_nobody(make, temperature, bad):
    vocab_size = 100
    logits = torch.randn(3, vocab_size)
    logits[0] = bad
    logits[1, [3, 50, 99]] = bad
    params = SamplingParams(temperature=temperature, top_k=9, top_p=0.9, min_p=0.01, logprobs=4)
    sampler = make(vocab_size)
    for sampling in (params, SamplingParams(temperature=temperature), SamplingParams(temperature=1.0, top_p=0.9)):
        sequences = [_sequence(sampling, sample_index=i) for i in range(3)]
        tokens = sampler.sample(logits, range(3), sequences).finish().token_ids
        assert all(0 <= token < vocab_size for token in tokens)
        assert (tokens[1] == 3) if bad == torch.inf else (tokens[1] not in (3, 50, 99))
        assert tokens[2:] == TorchSampler().sample(logits, [2], sequences[2:]).finish().token_ids
    beams = [_sequence(params, num_candidates=vocab_size) for _ in range(3)]
    for tokens, _ in sampler.candidates(logits, range(3), beams)():
        assert sorted(tokens) == list(range(vocab_size))


def test_most_of_a_large_vocabulary_can_be_kept(make):
    """More tokens than are looked at first, by their number and by their sum."""
    vocab_size = 30000
    logits = torch.zeros(1, vocab_size)
    sampler = make(vocab_size)
    for params, kept in (
        (SamplingParams(top_k=20000), 20000),
        (SamplingParams(top_p=0.75), 22500),
        (SamplingParams(top_k=20000, top_p=0.5), 10000),
    ):
        sequences = [_sequence(params, sample_index=i) for i in range(60)]
        tokens = sampler.sample(logits, [0] * 60, sequences).finish().token_ids
        assert 0.9 * kept < max(tokens) < kept


def test_penalties_of_a_long_output(make, rng):
    """Token for token, each sequence with the tokens it has by then."""
    vocab_size = 300
    penalties = Penalties(presence=0.6, frequency=0.4, repetition=1.2, logit_bias={7: 3.0})
    logits = 3 * torch.randn(1, vocab_size)
    native, reference = make(vocab_size), TorchSampler()
    prompt = rng.choices(range(vocab_size), k=30)
    pair = [_sequence(SamplingParams(temperature=0, penalties=penalties), prompt, 30) for _ in range(2)]
    for _ in range(300):
        for sampler, sequence in zip((native, reference), pair, strict=True):
            sequence.token_ids.extend(sampler.sample(logits, [0], [sequence]).finish().token_ids)
    assert pair[0].token_ids == pair[1].token_ids
    assert len(set(pair[0].token_ids[30:])) > 50


def test_copies_of_a_sequence_go_their_own_ways(make):
    sampler = make(50)
    logits = torch.zeros(1, 50)
    parent = _sequence(SamplingParams(temperature=1.0, seed=3))
    assert sampler.sample(logits, [0], [parent]).finish().token_ids
    children = [parent.fork(i, i) for i in range(40)]
    tokens = sampler.sample(logits, [0] * 40, children).finish().token_ids
    assert tokens == TorchSampler().sample(logits, [0] * 40, children).finish().token_ids
    assert len(set(tokens)) > 10


def test_other_logits_are_refused(make):
    sampler, sequences = make(50), [_sequence(SamplingParams())]
    for logits, message in (
        (torch.zeros(1, 50, dtype=torch.float64), "float32"),
        (torch.zeros(50, 2).T[:1], "float32"),
        (torch.zeros(1, 49), "logits of 49 tokens for a vocabulary of 50"),
    ):
        with pytest.raises(ValueError, match=message):
            sampler.sample(logits, [0], sequences).finish()
