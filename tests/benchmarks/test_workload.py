"""The soak's requests: decided by the seed, of every kind, and acceptable to the gateway unless meant not to be."""

import random

import pytest

from benchmarks.soak.prompts import LONGEST, SCOPES, SHORTEST, skewed
from benchmarks.soak.sampling import MAX_TOKENS, WIDEST, Probe, is_ranked
from benchmarks.soak.workload import Kind, Planned, draw, probe_requests
from octavo.v1 import inference_pb2

MODEL = inference_pb2.Model(name="m", max_model_len=1456, vocab_size=49152, block_size=16, num_blocks=91)


def probes(seed: int) -> list[Probe]:
    text = "An answer with some words, and its end. "
    return [Probe(request, text, range(400, 448)) for request in probe_requests(seed, MODEL.vocab_size)]


def workload(seed: int, count: int = 300) -> list[Planned]:
    return draw(seed, count, MODEL, probes(seed))


@pytest.fixture
def seed() -> int:
    return random.getrandbits(32)


def test_the_seed_decides_every_request(seed: int) -> None:
    assert workload(seed) == workload(seed)
    assert workload(seed) != workload(seed + 1)


@pytest.mark.parametrize("count", [8, 40, 300])
def test_there_are_as_many_as_asked_for_and_of_every_kind(seed: int, count: int) -> None:
    planned = workload(seed, count)
    assert [each.number for each in planned] == list(range(count))
    assert {each.kind for each in planned} == set(Kind)


def valid_requests(seed: int) -> list[inference_pb2.GenerateRequest]:
    return [each.request for each in workload(seed, 500) if each.kind is not Kind.INVALID]


def test_it_mixes_what_it_says(seed: int) -> None:
    valid = valid_requests(seed)
    assert {request.sampling.n for request in valid} >= {1, 2, 3, 4}
    assert {request.prompt.WhichOneof("content") for request in valid} == {"text", "chat", "tokens", "segmented"}
    assert any(request.sampling.temperature == 0 for request in valid)
    assert any(request.sampling.temperature > 0 and request.sampling.HasField("seed") for request in valid)
    for field in ("stop", "stop_token_ids", "logit_bias"):
        assert any(getattr(request.sampling, field) for request in valid)
    penalties = ("presence_penalty", "frequency_penalty", "repetition_penalty")
    for field in ("logprobs", "min_tokens", "ignore_eos", "top_k", "top_p", "min_p", *penalties):
        assert any(request.sampling.HasField(field) for request in valid)
    assert all(1 <= request.sampling.max_tokens <= MAX_TOKENS for request in valid)
    assert any(request.report_progress for request in valid)
    assert len({request.priority for request in valid}) > 2


def test_beam_searches_are_of_every_kind(seed: int) -> None:
    searches = [request.sampling for request in valid_requests(seed) if request.sampling.HasField("beam_width")]
    assert {sampling.beam_width for sampling in searches} == set(range(2, WIDEST + 1))
    assert {sampling.length_penalty for sampling in searches} >= {0.5, 1.0, 2.0}
    assert {sampling.early_stopping for sampling in searches} >= {1, 2, 3}
    assert all(1 <= sampling.n <= sampling.beam_width for sampling in searches)
    assert any(sampling.stop_token_ids for sampling in searches)


def test_some_ask_for_the_best_of_several(seed: int) -> None:
    requests = [request.sampling for request in valid_requests(seed) if request.sampling.HasField("best_of")]
    assert all(sampling.n < sampling.best_of <= WIDEST for sampling in requests)
    assert all(is_ranked(sampling) for sampling in requests)
    assert {bool(sampling.stop) for sampling in requests} == {True, False}


def test_prompts_and_their_parts_are_of_every_scope(seed: int) -> None:
    valid = valid_requests(seed)
    segments = [segment for request in valid for segment in request.prompt.segmented.segments]
    kinds = {name.partition(":")[0] for name in SCOPES}
    assert {request.cache_scope.WhichOneof("scope") for request in valid} == {*kinds, None}
    assert {segment.cache_scope.WhichOneof("scope") for segment in segments} == {*kinds, None}
    assert {segment.WhichOneof("content") for segment in segments} == {"text", "message", "tokens"}


def test_many_prompts_begin_alike(seed: int) -> None:
    beginnings = [
        tuple(each.request.prompt.tokens.token_ids[:50])
        for each in workload(seed, 500)
        if len(each.request.prompt.tokens.token_ids) > 60
    ]
    assert len(set(beginnings)) < len(beginnings)


def test_only_those_that_should_end_early_have_a_short_limit(seed: int) -> None:
    for each in workload(seed):
        short = [limit for limit in (each.timeout, each.deadline) if limit is not None and limit < 60]
        assert bool(short) == (each.kind in (Kind.TIMEOUT, Kind.DEADLINE))
        goes = each.cancel_after is not None or each.cancel_seconds is not None
        assert goes == (each.kind in (Kind.ABORT, Kind.LEAVE))


def test_lengths_keep_to_their_range() -> None:
    lengths = [skewed(random.Random(), SHORTEST, LONGEST, 1.8) for _ in range(5000)]
    assert min(lengths) == SHORTEST
    assert LONGEST / 2 < max(lengths) <= LONGEST
