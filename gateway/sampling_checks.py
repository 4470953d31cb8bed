"""The limits of sampling parameters, and which of them go together."""

from __future__ import annotations

from typing import NoReturn

from gateway.errors import InvalidArgument
from gateway.prepared import ModelLimits
from gateway.request import SamplingParams
from gateway.validation import check_token_ids, require

MAX_TEMPERATURE = 100.0
MAX_PENALTY = 2.0
MAX_REPETITION_PENALTY = 10.0
MAX_BIAS = 100.0
MAX_BIASED_TOKENS = 1024
MAX_N = 64
MAX_BEAM_WIDTH = 32
MAX_LENGTH_PENALTY = 10.0
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024
MAX_STOP_TOKEN_IDS = 64


def check_sampling(sampling: SamplingParams, limits: ModelLimits) -> None:
    """Checks every sampling parameter, and that none is there that another one makes void.

    Raises:
        InvalidArgument: Naming the field.
    """
    _check_distribution(sampling)
    _check_penalties(sampling, limits)
    _check_counts(sampling)
    _check_stops(sampling, limits)
    _check_search(sampling)


def _check_distribution(sampling: SamplingParams) -> None:
    # Written so that NaN fails.
    if sampling.temperature is not None and not 0 <= sampling.temperature <= MAX_TEMPERATURE:
        _refuse("temperature", f"must be from 0 to {MAX_TEMPERATURE:g}", sampling.temperature)
    if sampling.top_p is not None and not 0 < sampling.top_p <= 1:
        _refuse("top_p", "must be more than 0 and at most 1", sampling.top_p)
    if sampling.top_k is not None and sampling.top_k < 0:
        _refuse("top_k", "must be at least 0, which keeps all tokens", sampling.top_k)
    if sampling.min_p is not None and not 0 <= sampling.min_p <= 1:
        _refuse("min_p", "must be from 0 to 1", sampling.min_p)
    if sampling.seed is not None and not 0 <= sampling.seed < 2**64:
        _refuse("seed", "must be from 0 to 2^64 - 1", sampling.seed)


def _check_counts(sampling: SamplingParams) -> None:
    if sampling.n is not None and not 1 <= sampling.n <= MAX_N:
        _refuse("n", f"must be from 1 to {MAX_N}", sampling.n)
    if sampling.logprobs is not None and not 0 <= sampling.logprobs <= MAX_LOGPROBS:
        _refuse("logprobs", f"must be from 0 to {MAX_LOGPROBS}", sampling.logprobs)
    if sampling.max_tokens is not None and sampling.max_tokens < 1:
        _refuse("max_tokens", "must be at least 1", sampling.max_tokens)
    if sampling.min_tokens is not None:
        if sampling.min_tokens < 0:
            _refuse("min_tokens", "must be at least 0", sampling.min_tokens)
        if sampling.max_tokens is not None and sampling.min_tokens > sampling.max_tokens:
            _refuse("min_tokens", f"must be at most max_tokens ({sampling.max_tokens})", sampling.min_tokens)


def _check_stops(sampling: SamplingParams, limits: ModelLimits) -> None:
    if len(sampling.stop) > MAX_STOP_STRINGS:
        _refuse("stop", f"must be at most {MAX_STOP_STRINGS} strings", len(sampling.stop))
    for index, stop in enumerate(sampling.stop):
        require(bool(stop), f"sampling.stop[{index}]", "must not be empty")
        if len(stop) > MAX_STOP_LENGTH:
            _refuse(f"stop[{index}]", f"must have at most {MAX_STOP_LENGTH} characters", len(stop))
    if len(sampling.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        _refuse("stop_token_ids", f"must be at most {MAX_STOP_TOKEN_IDS} ids", len(sampling.stop_token_ids))
    check_token_ids(sampling.stop_token_ids, "sampling.stop_token_ids", limits.vocab_size)


def _check_penalties(sampling: SamplingParams, limits: ModelLimits) -> None:
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(sampling, name)
        if value is not None and not -MAX_PENALTY <= value <= MAX_PENALTY:
            _refuse(name, f"must be from {-MAX_PENALTY:g} to {MAX_PENALTY:g}", value)
    repetition = sampling.repetition_penalty
    if repetition is not None and not 0 < repetition <= MAX_REPETITION_PENALTY:
        _refuse("repetition_penalty", f"must be more than 0 and at most {MAX_REPETITION_PENALTY:g}", repetition)
    if len(sampling.logit_bias) > MAX_BIASED_TOKENS:
        _refuse("logit_bias", f"must be of at most {MAX_BIASED_TOKENS} tokens", len(sampling.logit_bias))
    for token_id, bias in sampling.logit_bias.items():
        require(
            0 <= token_id < limits.vocab_size,
            f"sampling.logit_bias[{token_id}]",
            f"{token_id} is not a token of the model; ids go from 0 to {limits.vocab_size - 1}",
        )
        if not -MAX_BIAS <= bias <= MAX_BIAS:
            _refuse(f"logit_bias[{token_id}]", f"must be from {-MAX_BIAS:g} to {MAX_BIAS:g}", bias)


def _check_search(sampling: SamplingParams) -> None:
    """`best_of` and beam search."""
    n = 1 if sampling.n is None else sampling.n
    if sampling.best_of is not None and not n <= sampling.best_of <= MAX_N:
        _refuse("best_of", f"must be from n ({n}) to {MAX_N}", sampling.best_of)
    penalty = sampling.length_penalty
    if penalty is not None and not -MAX_LENGTH_PENALTY <= penalty <= MAX_LENGTH_PENALTY:
        _refuse("length_penalty", f"must be from {-MAX_LENGTH_PENALTY:g} to {MAX_LENGTH_PENALTY:g}", penalty)
    if sampling.beam_width is not None:
        _check_beam_search(sampling, n, sampling.beam_width)
        return
    for name in ("length_penalty", "early_stopping"):
        require(
            getattr(sampling, name) is None, f"sampling.{name}", "is only for beam search, which beam_width asks for"
        )


def _check_beam_search(sampling: SamplingParams, n: int, width: int) -> None:
    if not 1 <= width <= MAX_BEAM_WIDTH:
        _refuse("beam_width", f"must be from 1 to {MAX_BEAM_WIDTH}", width)
    if n > width:
        _refuse("n", f"must be at most beam_width ({width})", n)
    if sampling.temperature:
        _refuse("temperature", "must be absent or 0 where beam_width asks for beam search", sampling.temperature)
    excluded = {
        "best_of": sampling.best_of is not None,
        "logprobs": sampling.logprobs is not None,
        "stop": bool(sampling.stop),
    }
    for name, given in excluded.items():
        require(not given, f"sampling.{name}", "does not go with beam search, which beam_width asks for")


def _refuse(name: str, rule: str, value: object) -> NoReturn:
    raise InvalidArgument(f"sampling.{name}", f"{rule}, is {value}")
