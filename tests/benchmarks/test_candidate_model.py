"""The stand-in for a language model: distributions, and beams that part about as far back as measured."""

from __future__ import annotations

import math
import random

import pytest

from benchmarks.beam_statistics import StandIn, Statistics
from benchmarks.candidate_model import LONG_ANSWERS, SHORT_ANSWERS, VOCAB_SIZE, BeamProfile, CandidateModel


@pytest.mark.parametrize("profile", [SHORT_ANSWERS, LONG_ANSWERS])
def test_candidates_are_the_head_of_a_distribution(profile: BeamProfile) -> None:
    model = CandidateModel(profile, random.getrandbits(32))
    for _ in range(20):
        model.next_step()
        token_ids, logprobs = model.draw("a", 8)
        assert len(set(token_ids)) == 8
        assert logprobs == sorted(logprobs, reverse=True)
        everything = model.draw("b", VOCAB_SIZE)[1]
        assert math.fsum(map(math.exp, everything)) == pytest.approx(1, rel=1e-3)
        assert any(math.isclose(everything[0], math.log(probability)) for probability in profile.top_probabilities)


def test_similar_beams_have_one_distribution_in_a_step() -> None:
    model = CandidateModel(BeamProfile((0.3, 0.9), similarity=1.0), seed=1)
    steps = []
    for _ in range(20):
        model.next_step()
        draws = [model.draw("a", 4) for _ in range(6)]
        assert all(draw == draws[0] for draw in draws)
        steps.append(draws[0][1][0])
    assert len(set(steps)) > 1


def test_different_beams_have_their_own() -> None:
    model = CandidateModel(BeamProfile((0.3, 0.9), similarity=0.0), seed=1)
    assert len({model.draw("a", 1)[1][0] for _ in range(50)}) > 1


# Measured with SmolLM2-135M-Instruct on 24 instructions of Stanford Alpaca, 100 tokens each.
@pytest.mark.parametrize(("width", "since_all", "since_two"), [(2, 7.3, 7.3), (4, 16.3, 11.8), (6, 27.0, 16.5)])
def test_beams_part_as_far_back_as_those_of_a_real_model(width: int, since_all: float, since_two: float) -> None:
    statistics = Statistics()
    for seed in range(40):
        statistics.search(StandIn(SHORT_ANSWERS, seed), width, 100)
    line = statistics.line()
    assert line["tokens_since_all_beams"] == pytest.approx(since_all, rel=0.25)
    assert line["tokens_since_two_beams"] == pytest.approx(since_two, rel=0.25)
