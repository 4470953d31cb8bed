"""The engine in one process, and how the stack is compared with it."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.answers import Answer
from benchmarks.in_process import EngineProcess
from benchmarks.line_process import ChildFailed
from benchmarks.measuring import Measurement
from benchmarks.probe import Probe
from benchmarks.request_sets import RequestSet, TokenRequest
from benchmarks.split import compare
from tests.services.e2e.tiny_model import VOCAB_SIZE, Reference


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[EngineProcess]:
    options = {
        "dtype": "float32",
        "kv-memory": "16MiB",
        "host-memory": "0",
        "threads": 1,
        "max-batched-tokens": 64,
        "max-sequences": 16,
    }
    with EngineProcess(model, options) as engine:
        yield engine


@pytest.mark.parametrize("at_once", [True, False])
def test_answers_are_those_of_transformers(engine: EngineProcess, model: Path, at_once: bool) -> None:
    seed = random.getrandbits(32)
    rng = random.Random(seed)
    requests = [
        TokenRequest([rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 60))], rng.randint(1, 40))
        for _ in range(6)
    ]
    answers = engine.run(RequestSet("some", requests, at_once))
    reference = Reference(model)
    for request, answer in zip(requests, answers, strict=True):
        assert answer.token_ids == reference.greedy(request.prompt, request.output_tokens), seed
        assert answer.sent < answer.first <= answer.last
    if at_once:
        assert len({answer.sent for answer in answers}) == 1
    else:
        assert all(one.last <= other.sent for one, other in pairwise(answers))


def test_it_says_which_kernels_run(engine: EngineProcess) -> None:
    assert engine.details()["kernels"]
    assert engine.details()["dtype"] == "float32"


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ChildFailed):
        EngineProcess(tmp_path / "nothing", {})


class Fixed:
    """A system whose answers take as long as it is told."""

    start_s = 0.0
    pid = os.getpid()

    def __init__(self, name: str, first: float, last: float) -> None:
        self.name = name
        self._times = first, last

    def run(self, requests: RequestSet) -> list[Answer]:
        first, last = self._times
        return [Answer(0.0, first, last, [7] * request.output_tokens) for request in requests.requests]

    def details(self) -> dict[str, Any]:
        return {}


def test_the_stack_beside_the_engine() -> None:
    stack, engine = (
        Measurement(system, "alpaca", 1, 4) for system in (Fixed("stack", 0.105, 10.0), Fixed("one", 0.1, 9.8))
    )
    with Probe(memory_bytes=1 << 20) as probe:
        for side in (stack, engine):
            side.run_round(probe)
    found = compare(stack, engine)
    assert found["throughput_ratio"] == pytest.approx(0.98, abs=0.005)
    assert found["ttft_difference_ms"] == pytest.approx(5.0)
    assert found["equal_first_tokens"] == 1.0
    assert set(found["cpu_s_per_1k"]) == {"stack", "client", "one_process"}
