"""What came back from a system that was sent a set of requests, and the figures of it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.request_sets import RequestSet


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one request.

    Attributes:
        sent: when it was sent; this and the other times are seconds on one clock of the system's own.
        first: when its first token was there.
        last: when its last token was there.
    """

    sent: float
    first: float
    last: float
    token_ids: list[int]


class WrongAnswer(Exception):
    """A system gave fewer or more tokens than asked: its figures would mean nothing."""


def figures(
    requests: RequestSet, answers: Sequence[Answer], cpu_seconds: float, client_cpu_seconds: float
) -> dict[str, Any]:
    """Throughput, processor time and latency.

    `tokens_per_s` is output tokens over the time from the first request's being sent until the last token.
    `cpu_s_per_1k` is processor time of the system's processes for 1,000 output tokens; the client's is apart, and so
    are the first token's times of prompts that were sent before.

    Raises:
        WrongAnswer: a number of tokens is not what was asked for.
    """
    for number, (request, answer) in enumerate(zip(requests.requests, answers, strict=True)):
        if len(answer.token_ids) != request.output_tokens:
            raise WrongAnswer(
                f"request {number} of {requests.name} has {len(answer.token_ids)} tokens, not {request.output_tokens}"
            )
    seconds = max(each.last for each in answers) - min(each.sent for each in answers)
    waits = [1000 * (answer.first - answer.sent) for answer in answers]
    new = [wait for wait, request in zip(waits, requests.requests, strict=True) if not request.repeated]
    repeated = [wait for wait, request in zip(waits, requests.requests, strict=True) if request.repeated]
    found = {
        "tokens_per_s": round(requests.output_tokens / seconds, 1),
        "cpu_s_per_1k": round(1000 * cpu_seconds / requests.output_tokens, 3),
        "client_cpu_s_per_1k": round(1000 * client_cpu_seconds / requests.output_tokens, 3),
        "ttft_ms_p50": round(statistics.median(new), 2),
        "seconds": round(seconds, 3),
    }
    if repeated:
        found["cached_ttft_ms_p50"] = round(statistics.median(repeated), 2)
    return found
