"""The judge of the soak accepts what the sampler chooses, and nothing else."""

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks.soak.choices import LOGIT_TOLERANCE, allowed  # noqa: E402
from benchmarks.soak.processors import changes_rows, processed  # noqa: E402
from executor.sampling.random_stream import uniform  # noqa: E402
from executor.sampling.sampler import Draw, sample  # noqa: E402
from executor.step import Penalties, SamplingParams  # noqa: E402
from octavo.v1 import common_pb2  # noqa: E402

VOCAB = 400
POSITIONS = 200
SAMPLINGS = [
    {},
    {"temperature": 0.3},
    {"temperature": 1.5, "top_k": 20},
    {"temperature": 0.7, "top_p": 0.8},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 1.0, "top_k": 50, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 1.0, "top_k": 1},
]


@pytest.fixture
def logits() -> "torch.Tensor":
    return torch.randn(POSITIONS, VOCAB) * 3


def chosen_by_executor(logits: "torch.Tensor", sampling: dict[str, float], seed: int) -> list[int]:
    params = SamplingParams(**{"temperature": 1.0, **sampling}, seed=seed)  # type: ignore[arg-type]
    draws = [Draw(position, params, 0, position) for position in range(len(logits))]
    return sample(logits.clone(), draws).finish().token_ids


def uniforms(seed: int) -> list[float]:
    return [uniform(seed, 0, position) for position in range(POSITIONS)]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_what_the_sampler_chooses_is_allowed_despite_rounding(
    logits: "torch.Tensor", sampling: dict[str, float]
) -> None:
    seed = random.getrandbits(64)
    off = logits + (torch.rand_like(logits) * 2 - 1) * LOGIT_TOLERANCE
    tokens = chosen_by_executor(off, sampling, seed)
    assert all(allowed(logits, tokens, common_pb2.SamplingParams(**sampling), uniforms(seed)))
    assert all(allowed(logits, tokens, common_pb2.SamplingParams(**sampling), None))


@pytest.mark.parametrize("sampling", SAMPLINGS[:-1], ids=str)
def test_tokens_of_another_seed_are_found_out(logits: "torch.Tensor", sampling: dict[str, float]) -> None:
    tokens = chosen_by_executor(logits, sampling, 1)
    others = chosen_by_executor(logits, sampling, 2)
    verdict = allowed(logits, others, common_pb2.SamplingParams(**sampling), uniforms(1))
    different = [fine for fine, token, other in zip(verdict, tokens, others, strict=True) if token != other]
    assert len(different) > POSITIONS / 10
    # What is accepted lies within rounding of the right choice, which is rare.
    assert sum(different) < len(different) / 10


@pytest.mark.parametrize("cut", [{"top_k": 20}, {"top_p": 0.8}, {"min_p": 0.05}, {"top_k": 50, "top_p": 0.9}], ids=str)
def test_tokens_that_are_cut_off_are_found_out_without_a_seed(logits: "torch.Tensor", cut: dict[str, float]) -> None:
    hot = common_pb2.SamplingParams(temperature=1.0, **cut)
    # So far down that none is a twentieth as likely as the first one.
    tokens = logits.argsort(dim=-1, descending=True)[:, 130].tolist()
    assert not any(allowed(logits, tokens, hot, None))


def test_greedy_takes_the_largest_logit_or_one_in_a_near_tie(logits: "torch.Tensor") -> None:
    greedy = common_pb2.SamplingParams(temperature=0.0)
    tokens = logits.argmax(dim=-1)
    runners_up = logits.argsort(dim=-1, descending=True)[:, 1]
    assert all(allowed(logits, tokens.tolist(), greedy, None))
    logits[torch.arange(POSITIONS), runners_up] = logits.amax(dim=-1) - 0.01
    assert not any(allowed(logits, runners_up.tolist(), greedy, None))
    logits[torch.arange(POSITIONS), runners_up] = logits.amax(dim=-1) - LOGIT_TOLERANCE
    assert all(allowed(logits, runners_up.tolist(), greedy, None))


def test_forbidden_tokens_are_found_out(logits: "torch.Tensor") -> None:
    forbidden: Sequence[int] = logits.argmax(dim=-1).tolist()
    logits[torch.arange(POSITIONS), torch.tensor(forbidden)] = float("-inf")
    for sampling in (common_pb2.SamplingParams(temperature=0.0), common_pb2.SamplingParams(top_k=20, top_p=0.9)):
        assert not any(allowed(logits, forbidden, sampling, None))


PENALTIES = [
    {"logit_bias": {7: 3.5, 11: -100.0}},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8},
    {"presence_penalty": 0.6},
    {"frequency_penalty": 0.7},
    {"logit_bias": {3: 2.0}, "repetition_penalty": 1.2, "presence_penalty": -0.5, "frequency_penalty": 1.1},
    {"min_tokens": 30},
]


@pytest.mark.parametrize("changes", PENALTIES, ids=str)
def test_penalties_are_what_the_executor_makes_of_them(logits: "torch.Tensor", changes: dict[str, Any]) -> None:
    """Greedy choices one after the other, each of which changes those after it."""
    sampling = common_pb2.SamplingParams(temperature=0.0, **changes)
    prompt, stops = [random.randrange(VOCAB) for _ in range(10)], {5, 6}
    logits[:, [5, 6, 11]] += 6.0  # so likely that forbidding or punishing them changes some choice
    output: list[int] = []
    for row in logits[:60]:
        params = SamplingParams(
            temperature=0.0,
            seed=1,
            min_tokens=sampling.min_tokens,
            stop_token_ids=tuple(stops),
            penalties=Penalties(
                presence=sampling.presence_penalty,
                frequency=sampling.frequency_penalty,
                repetition=sampling.repetition_penalty if sampling.HasField("repetition_penalty") else 1.0,
                logit_bias=dict(sampling.logit_bias),
            ),
        )
        draw = Draw(0, params, 0, len(output), [*prompt, *output])
        output += sample(row[None].clone(), [draw]).finish().token_ids
    assert changes_rows(sampling)
    assert all(allowed(processed(logits[:60], prompt, output, sampling, stops), output, sampling, None))
    assert not all(allowed(logits[:60], output, sampling, None))


def test_without_penalties_nothing_changes(logits: "torch.Tensor") -> None:
    sampling = common_pb2.SamplingParams(temperature=0.0, repetition_penalty=1.0)
    assert not changes_rows(sampling)
    assert processed(logits, [1], [2] * POSITIONS, sampling, {5}) is logits


def test_what_several_verifiers_have_checked_adds_up() -> None:
    pytest.importorskip("transformers")
    from benchmarks.soak.judge import TokenCounts
    from benchmarks.soak.verify import Verified

    one = Verified(requests=3, tokens=TokenCounts(greedy=5, beams=2, largest_score_error=0.1))
    two = Verified(requests=4, tokens=TokenCounts(greedy=6, largest_score_error=0.3))
    one.prefix_match_ends["evicted"] += 2
    two.prefix_match_ends["evicted"] += 1
    summary = json.loads(json.dumps(Verified.sum([one, two]).summary()))
    assert (summary["requests"], summary["greedy"], summary["beams"], summary["largest_score_error"]) == (7, 11, 2, 0.3)
    assert summary["prefix_match_ends"] == {"evicted": 3}
