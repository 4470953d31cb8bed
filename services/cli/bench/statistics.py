"""What a load's records say."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from services.cli.bench.load import Record


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Value below which so many percent are, linear between two; of an ascending, non-empty sequence."""
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True)
class Distribution:
    """How some values are distributed."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Distribution | None:
        """None where there are no values."""
        ordered = sorted(values)
        if not ordered:
            return None
        p50, p90, p95, p99 = (percentile(ordered, each) for each in (50, 90, 95, 99))
        return cls(len(ordered), math.fsum(ordered) / len(ordered), p50, p90, p95, p99, ordered[-1])


@dataclass(frozen=True)
class Slo:
    """What a good request keeps, in seconds. None: anything.

    Attributes:
        itl: Mean time between a request's tokens.
    """

    ttft: float | None = None
    itl: float | None = None
    e2e: float | None = None

    def __bool__(self) -> bool:
        return any(limit is not None for limit in (self.ttft, self.itl, self.e2e))

    def is_kept(self, record: Record) -> bool:
        """By a request that succeeded."""
        pairs = (
            (self.ttft, time_to_first_token(record)),
            (self.itl, time_per_output_token(record)),
            (self.e2e, end_to_end(record)),
        )
        return all(limit is None or value is None or value <= limit for limit, value in pairs)


# Of one request, in seconds; None where it has none.


def time_to_first_token(record: Record) -> float | None:
    """From when it was due."""
    return record.arrivals[0][0] - record.due if record.arrivals else None


def end_to_end(record: Record) -> float | None:
    """From when it was due to its last token."""
    return record.arrivals[-1][0] - record.due if record.arrivals else None


def time_per_output_token(record: Record) -> float | None:
    """Mean time between tokens, after the first."""
    tokens = record.output_tokens
    return (record.arrivals[-1][0] - record.arrivals[0][0]) / (tokens - 1) if tokens > 1 else None


def normalized_latency(record: Record) -> float | None:
    """End-to-end latency over output tokens, as in the paper (Kwon et al., SOSP 2023, section 6.1)."""
    latency, tokens = end_to_end(record), record.output_tokens
    return latency / tokens if latency is not None and tokens else None


def inter_token_latencies(record: Record) -> Iterator[float]:
    """One for each token after those of the first response: of several that come together, an even part each."""
    last = record.arrivals[0][0] if record.arrivals else 0.0
    for time, tokens in record.arrivals[1:]:
        if tokens:
            yield from [(time - last) / tokens] * tokens
            last = time


@dataclass(frozen=True)
class Summary:
    """A load in figures. Latencies are of requests that succeeded, in seconds; rates are per second.

    Attributes:
        seconds: From the first request's due time to the last one's end.
        errors: How many requests failed, by kind.
        prompt_tokens: As the server counted, over requests that succeeded; None where it did not say. So below.
        cached_tokens: Of those, from a prefix cache.
        goodput: Requests that kept every limit; None where there is no limit.
        send_lag: How late requests were sent.
        loop_lag: How late the client's event loop was.
    """

    requests: int
    succeeded: int
    errors: dict[str, int]
    seconds: float
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int
    requests_per_s: float
    prompt_tokens_per_s: float | None
    output_tokens_per_s: float
    ttft: Distribution | None
    itl: Distribution | None
    tpot: Distribution | None
    e2e: Distribution | None
    normalized: Distribution | None
    good_requests: int | None
    goodput: float | None
    send_lag: Distribution | None
    loop_lag: Distribution | None

    @classmethod
    def of(cls, records: Sequence[Record], slo: Slo, lateness: Sequence[float] = ()) -> Summary:
        good = [record for record in records if record.succeeded]
        start = min((record.due for record in records), default=0.0)
        seconds = max((record.ended or 0.0 for record in records), default=0.0) - start
        prompt, output = _sum(record.prompt_tokens for record in good), sum(each.output_tokens for each in good)
        kept = sum(slo.is_kept(record) for record in good) if slo else None
        return cls(
            requests=len(records),
            succeeded=len(good),
            errors=dict(Counter(record.error for record in records if record.error).most_common()),
            seconds=seconds,
            prompt_tokens=prompt,
            cached_tokens=_sum(record.cached_tokens for record in good),
            output_tokens=output,
            requests_per_s=_rate(len(good), seconds),
            prompt_tokens_per_s=None if prompt is None else _rate(prompt, seconds),
            output_tokens_per_s=_rate(output, seconds),
            ttft=Distribution.of(_values(map(time_to_first_token, good))),
            itl=Distribution.of(gap for record in good for gap in inter_token_latencies(record)),
            tpot=Distribution.of(_values(map(time_per_output_token, good))),
            e2e=Distribution.of(_values(map(end_to_end, good))),
            normalized=Distribution.of(_values(map(normalized_latency, good))),
            good_requests=kept,
            goodput=None if kept is None else _rate(kept, seconds),
            send_lag=Distribution.of(record.sent - record.due for record in records),
            loop_lag=Distribution.of(lateness),
        )


def tokens_over_time(records: Sequence[Record], parts: int) -> tuple[list[float], float]:
    """Output tokens a second in so many equal parts of the load's time, and the seconds of one part."""
    arrivals = [arrival for record in records for arrival in record.arrivals]
    seconds = max((time for time, _ in arrivals), default=0.0)
    if not seconds:
        return [0.0] * parts, 0.0
    rates = [0.0] * parts
    width = seconds / parts
    for time, tokens in arrivals:
        rates[min(int(time / width), parts - 1)] += tokens / width
    return rates, width


def _values(values: Iterable[float | None]) -> Iterator[float]:
    return (value for value in values if value is not None)


def _sum(values: Iterable[int | None]) -> int | None:
    known = list(_values(values))
    return int(sum(known)) if known else None


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
