"""The soak's requests: decided by the seed, of every kind, and acceptable to the gateway unless meant not to be."""

import random

import pytest

from benchmarks.soak.prompts import LONGEST, SHORTEST, skewed
from benchmarks.soak.workload import MAX_TOKENS, Kind, Planned, Probe, draw, probe_requests
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


def test_it_mixes_what_it_says(seed: int) -> None:
    valid = [each.request for each in workload(seed) if each.kind is not Kind.INVALID]
    assert {request.sampling.n for request in valid} == {1, 2, 3, 4}
    assert {request.prompt.WhichOneof("content") for request in valid} == {"text", "chat", "tokens"}
    assert any(request.sampling.temperature == 0 for request in valid)
    assert any(request.sampling.temperature > 0 and request.sampling.HasField("seed") for request in valid)
    for field in ("stop", "stop_token_ids"):
        assert any(getattr(request.sampling, field) for request in valid)
    for field in ("logprobs", "min_tokens", "ignore_eos", "top_k", "top_p", "min_p"):
        assert any(request.sampling.HasField(field) for request in valid)
    assert all(1 <= request.sampling.max_tokens <= MAX_TOKENS for request in valid)


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
