"""The figures on memory: the core on an instant executor, beside the Orcas."""

from __future__ import annotations

import json
import random

import pytest

from benchmarks import memory_waste, sharing
from benchmarks.candidate_model import LONG_ANSWERS, SHORT_ANSWERS, BeamProfile
from benchmarks.core_run import CoreRun
from benchmarks.workloads import ALPACA, RequestLengths


@pytest.fixture
def seed() -> int:
    return random.getrandbits(32)


@pytest.mark.parametrize("sequences", [{}, {"n": 3}, {"beam_width": 3}], ids=["one", "samples", "beams"])
def test_every_request_is_served(seed: int, sequences: dict[str, int]) -> None:
    lengths = ALPACA.draw(30, seed)
    run = CoreRun(lengths, num_blocks=200, block_size=8, seed=seed, max_sequences=24, **sequences)
    for _ in run.steps():
        run.manager.check_integrity()
    assert run.manager.idle
    assert run.manager.counters.prompt_tokens == sum(each.prompt for each in lengths)
    num_sequences = max(sequences.values(), default=1)
    # Not all of the last tokens of beams count as generated.
    assert run.manager.counters.generated_tokens >= num_sequences * sum(each.output - 1 for each in lengths)


def test_the_seed_decides_everything(seed: int) -> None:
    lengths = ALPACA.draw(20, seed)
    first, second = (sharing.saved("beam", 4, lengths, 16, seed, SHORT_ANSWERS) for _ in range(2))
    assert first == second


def test_blocks_waste_little_and_reservations_much(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    memory_waste.main(requests=300, block_size=16, seed=seed)
    *lines, summary = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert summary["octavo_waste"] <= 0.04
    assert summary["octavo_waste"] < summary["orca_oracle_waste"] < summary["orca_max_waste"]
    assert summary["octavo_token_share"] > 2 * summary["orca_oracle_token_share"]
    for line in lines:
        uses = ("tokens", "reserved", "internal", "rounding", "external", "unused")
        assert sum(line[use] for use in uses) == pytest.approx(1, abs=1e-3)


def test_samples_share_the_full_blocks_of_their_prompt(seed: int) -> None:
    # Ten blocks of prompt; the output grows from none to ten blocks, five on average.
    share = sharing.saved("parallel", 2, [RequestLengths(160, 160)] * 20, 16, seed, SHORT_ANSWERS)
    assert share == pytest.approx(10 / 31, abs=0.03)


# Saved in the block tables of SmolLM2-135M-Instruct's beams, with prompts of so many tokens in blocks of 16.
@pytest.mark.parametrize(
    ("profile", "lengths", "measured"),
    [
        (SHORT_ANSWERS, RequestLengths(19, 100), {2: 0.362, 4: 0.534, 6: 0.591}),
        (LONG_ANSWERS, RequestLengths(161, 400), {2: 0.427, 4: 0.655, 6: 0.704}),
    ],
)
def test_beams_share_as_much_as_those_of_a_real_model(
    profile: BeamProfile, lengths: RequestLengths, measured: dict[int, float]
) -> None:
    for width, share in measured.items():
        assert sharing.saved("beam", width, [lengths] * 16, 16, 1, profile) == pytest.approx(share, abs=0.03)


def test_more_sequences_save_more_and_beams_most(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    sharing.main(requests=12, block_size=16, seed=seed, similarity=None)
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    for workload in ("alpaca", "sharegpt"):
        for method in ("parallel", "beam"):
            saved = [summary[f"{workload}_{method}{width}_saved"] for width in (2, 4, 6)]
            assert 0 < saved[0] < saved[1] < saved[2] < 5 / 6
        assert summary[f"{workload}_beam2_saved"] > summary[f"{workload}_parallel2_saved"]
