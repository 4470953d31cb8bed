"""Every sampling parameter's limits, both sides of each, the field named; and which of them go together."""

import math

import pytest

from gateway.errors import InvalidArgument
from gateway.prepared import ModelLimits
from gateway.request import EarlyStopping, SamplingParams
from gateway.sampling_checks import check_sampling

LIMITS = ModelLimits(max_model_len=2048, vocab_size=100, block_size=16)
NAN, INFINITY = math.nan, math.inf


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("temperature", [0.0, 100.0], [-0.1, 100.1, NAN, INFINITY, -INFINITY]),
        ("top_p", [1e-6, 1.0], [0.0, 1.1, -1.0, NAN, INFINITY]),
        ("top_k", [0, 1, 2**31 - 1], [-1]),
        ("min_p", [0.0, 1.0], [-0.1, 1.1, NAN]),
        ("n", [1, 64], [0, 65, -1]),
        ("max_tokens", [1, 2**31 - 1], [0, -1]),
        ("min_tokens", [0, 7], [-1]),
        ("logprobs", [0, 20], [-1, 21]),
        ("seed", [0, 2**64 - 1], [-1, 2**64]),
        ("presence_penalty", [-2.0, 2.0], [-2.1, 2.1, NAN, INFINITY]),
        ("frequency_penalty", [-2.0, 2.0], [-2.1, 2.1, NAN, -INFINITY]),
        ("repetition_penalty", [1e-6, 10.0], [0.0, -1.0, 10.1, NAN, INFINITY]),
        ("best_of", [1, 64], [0, 65, -1]),
        ("beam_width", [1, 32], [0, 33, -1]),
        ("length_penalty", [], [-10.1, 10.1, NAN, INFINITY]),
    ],
)
def test_numbers(name: str, good: list[float], bad: list[float]) -> None:
    check_sampling(SamplingParams(), LIMITS)
    for value in good:
        check_sampling(SamplingParams(**{name: value}), LIMITS)
    for value in bad:
        with pytest.raises(InvalidArgument, match=f"is {value}") as error:
            check_sampling(SamplingParams(**{name: value}), LIMITS)
        assert error.value.field == f"sampling.{name}"


@pytest.mark.parametrize(
    ("sampling", "field", "message"),
    [
        (SamplingParams(min_tokens=6, max_tokens=5), "sampling.min_tokens", r"at most max_tokens \(5\)"),
        (SamplingParams(stop=["x"] * 17), "sampling.stop", "at most 16 strings, is 17"),
        (SamplingParams(stop=["a", ""]), "sampling.stop[1]", "empty"),
        (SamplingParams(stop=["x" * 1025]), "sampling.stop[0]", "at most 1024 characters, is 1025"),
        (SamplingParams(stop_token_ids=[1] * 65), "sampling.stop_token_ids", "at most 64 ids, is 65"),
        (SamplingParams(stop_token_ids=[1, 100]), "sampling.stop_token_ids[1]", "100 .*from 0 to 99"),
        (SamplingParams(logit_bias={3: 100.5}), "sampling.logit_bias[3]", "from -100 to 100, is 100.5"),
        (SamplingParams(logit_bias={3: NAN}), "sampling.logit_bias[3]", "from -100 to 100, is nan"),
        (SamplingParams(logit_bias={100: 1.0}), "sampling.logit_bias[100]", "not a token.*from 0 to 99"),
        (SamplingParams(logit_bias={-1: 1.0}), "sampling.logit_bias[-1]", "not a token.*from 0 to 99"),
        (
            SamplingParams(logit_bias=dict.fromkeys(range(1025), 0.0)),
            "sampling.logit_bias",
            "at most 1024 tokens, is 1025",
        ),
        (SamplingParams(n=3, best_of=2), "sampling.best_of", r"from n \(3\) to 64, is 2"),
        (SamplingParams(n=3, beam_width=2), "sampling.n", r"at most beam_width \(2\), is 3"),
        (SamplingParams(beam_width=2, best_of=2), "sampling.best_of", "does not go with beam search"),
        (SamplingParams(beam_width=2, logprobs=0), "sampling.logprobs", "does not go with beam search"),
        (SamplingParams(beam_width=2, stop=["x"]), "sampling.stop", "does not go with beam search"),
        (SamplingParams(beam_width=2, temperature=0.5), "sampling.temperature", "absent or 0 .*beam_width.*is 0.5"),
        (SamplingParams(length_penalty=1.0), "sampling.length_penalty", "only for beam search"),
        (SamplingParams(early_stopping=EarlyStopping.FIRST), "sampling.early_stopping", "only for beam search"),
    ],
)
def test_stops_and_relations(sampling: SamplingParams, field: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as error:
        check_sampling(sampling, LIMITS)
    assert error.value.field == field
    assert str(error.value) == f"{field}: {error.value.message}"


def test_the_largest_stops_pass() -> None:
    check_sampling(SamplingParams(stop=["x" * 1024] * 16, stop_token_ids=[99] * 64, min_tokens=5, max_tokens=5), LIMITS)
    check_sampling(SamplingParams(logit_bias=dict.fromkeys(range(100), -100.0)), LIMITS)


def test_what_goes_with_beam_search() -> None:
    for penalty in (-10.0, 10.0):
        sampling = SamplingParams(
            beam_width=4,
            n=4,
            length_penalty=penalty,
            early_stopping=EarlyStopping.NEVER,
            temperature=0.0,
            presence_penalty=1.0,
            stop_token_ids=[1],
            min_tokens=3,
        )
        check_sampling(sampling, LIMITS)
