"""Lengths of prompts and outputs are those of the paper, and the seed decides them."""

from __future__ import annotations

import random
from statistics import mean, median

import pytest

from benchmarks.workloads import ALPACA, MAX_MODEL_LEN, SHAREGPT, WORKLOADS, Workload, random_prompt


@pytest.mark.parametrize(("workload", "prompt", "output"), [(SHAREGPT, 161.31, 337.99), (ALPACA, 19.31, 58.45)])
def test_the_means_are_those_of_the_paper(workload: Workload, prompt: float, output: float) -> None:
    requests = workload.draw(40_000, seed=7)
    assert mean(each.prompt for each in requests) == pytest.approx(prompt, rel=0.03)
    assert mean(each.output for each in requests) == pytest.approx(output, rel=0.03)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_tails_are_long(workload: Workload) -> None:
    requests = workload.draw(5_000, seed=random.getrandbits(32))
    for lengths in ([each.prompt for each in requests], [each.output for each in requests]):
        assert min(lengths) >= 1
        assert median(lengths) < mean(lengths)
        assert max(lengths) > 4 * mean(lengths)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
@pytest.mark.parametrize("longest", [100, MAX_MODEL_LEN])
def test_every_request_fits_the_model(workload: Workload, longest: int) -> None:
    assert max(each.total for each in workload.draw(2_000, random.getrandbits(32), longest)) <= longest


def test_the_seed_decides() -> None:
    seed = random.getrandbits(32)
    assert SHAREGPT.draw(50, seed) == SHAREGPT.draw(100, seed)[:50]
    assert SHAREGPT.draw(50, seed) != SHAREGPT.draw(50, seed + 1)
    assert SHAREGPT.draw(50, seed) != ALPACA.draw(50, seed)


def test_lengths_follow_their_quantiles() -> None:
    outputs = sorted(each.output for each in ALPACA.draw(20_000, seed=3))
    for probability in (0.25, 0.5, 0.9):
        assert outputs[int(probability * len(outputs))] == pytest.approx(ALPACA.outputs.at(probability), rel=0.1, abs=1)


def test_prompts_have_nothing_in_common() -> None:
    rng = random.Random()
    prompts = [random_prompt(20, 1000, rng) for _ in range(50)]
    assert {len(prompt) for prompt in prompts} == {20}
    assert len({tuple(prompt[:3]) for prompt in prompts}) == 50
