"""Every field's limits: both sides of each, and the field named."""

import math

import pytest

from gateway.errors import InvalidArgument
from gateway.request import ModelLimits, SamplingParams
from gateway.validation import check_request_id, check_sampling, check_timeout

LIMITS = ModelLimits(max_model_len=2048, vocab_size=100)
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
    ],
)
def test_stops_and_relations(sampling: SamplingParams, field: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as error:
        check_sampling(sampling, LIMITS)
    assert error.value.field == field
    assert str(error.value) == f"{field}: {error.value.message}"


def test_the_largest_stops_pass() -> None:
    check_sampling(SamplingParams(stop=["x" * 1024] * 16, stop_token_ids=[99] * 64, min_tokens=5, max_tokens=5), LIMITS)


def test_request_ids() -> None:
    for good in ("", "a", "ü" * 128):
        check_request_id(good)
    for bad, message in (("x" * 129, "at most 128 characters, has 129"), ("a\nb", "printable"), ("\x00", "printable")):
        with pytest.raises(InvalidArgument, match=message) as error:
            check_request_id(bad)
        assert error.value.field == "request_id"


def test_time_limits() -> None:
    for good in (None, 1e-9, 315_576_000_000.0):
        check_timeout(good)
    for bad in (0.0, -1.0, NAN, INFINITY):
        with pytest.raises(InvalidArgument, match="more than 0") as error:
            check_timeout(bad)
        assert error.value.field == "timeout"
