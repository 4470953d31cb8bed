"""The figures of a soak."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from statistics import quantiles
from typing import Any

from benchmarks.soak import totals
from benchmarks.soak.client import Answer
from benchmarks.soak.load import Load
from benchmarks.soak.memory import MIB
from benchmarks.soak.pins import PinLog
from benchmarks.soak.sampling import is_ranked
from benchmarks.soak.sequences import assemble
from benchmarks.soak.workload import Kind


def summarise(load: Load) -> dict[str, Any]:
    """Everything that was counted and measured while the workload was served."""
    tokens = sum(len(response.token_ids) for answer in load.answers for response in answer.responses)
    return {
        "outcomes": _outcomes(load.answers),
        "seconds": round(load.seconds, 1),
        "tokens": tokens,
        "tokens_per_second": round(tokens / load.seconds, 1),
        "seconds_to_first_token": _percentiles(
            [answer.seconds_to_first for answer in load.answers if answer.seconds_to_first is not None]
        ),
        "deadlines": _deadlines(load.answers),
        "methods": _methods(load.answers),
        "memory_map": totals.summary(load.before, load.loaded),
        "pins": _pins(load.pins),
        "resident_mib": {
            name: {
                "first": round(growth.first / MIB, 1),
                "third": round(growth.third / MIB, 1),
                "end": round(growth.end / MIB, 1),
                "peak": round(growth.peak / MIB, 1),
            }
            for name, growth in load.growth.items()
        },
        "reruns": _reruns(load),
    }


def _outcomes(answers: Sequence[Answer]) -> dict[str, dict[str, int]]:
    """By kind, how often each outcome."""
    outcomes: dict[str, Counter[str]] = {kind.value: Counter() for kind in Kind}
    for answer in answers:
        outcomes[answer.planned.kind.value][answer.outcome] += 1
    return {kind: dict(counts) for kind, counts in outcomes.items()}


def _deadlines(answers: Sequence[Answer]) -> dict[str, Any]:
    met = [answer for answer in answers if answer.outcome == "deadline_exceeded"]
    late = [answer.seconds - (answer.planned.deadline or answer.planned.timeout or 0.0) for answer in met]
    return {
        "before_first_token": sum(answer.seconds_to_first is None for answer in met),
        "midway": sum(answer.seconds_to_first is not None for answer in met),
        "latest_seconds": round(max(late, default=0.0), 3),
    }


def _methods(answers: Sequence[Answer]) -> dict[str, int]:
    """How many complete answers each decoding method gave."""
    return dict(Counter(_method(answer) for answer in answers if answer.outcome == "ok"))


def _method(answer: Answer) -> str:
    sampling = answer.planned.request.sampling
    if sampling.HasField("beam_width"):
        return "beam_search"
    if is_ranked(sampling):
        return "best_of"
    return "greedy" if sampling.HasField("temperature") and sampling.temperature == 0 else "sampling"


def _pins(pins: PinLog) -> dict[str, int]:
    counts = asdict(pins)
    del counts["problems"]
    return counts


def _reruns(load: Load) -> dict[str, int]:
    """How many requests were sent again, and how many got other tokens than before."""
    tokens = {answer.planned.number: _tokens(answer) for answer in load.answers}
    different = sum(_tokens(answer) != tokens[answer.planned.number] for answer in load.reruns)
    return {"requests": len(load.reruns), "different": different}


def _tokens(answer: Answer) -> list[list[int]]:
    return [sequence.token_ids for sequence in assemble(answer.planned.request, answer.responses).sequences]


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    if len(values) < 2:
        return {}
    cuts = quantiles(values, n=20)
    return {"p50": round(cuts[9], 3), "p95": round(cuts[18], 3)}
