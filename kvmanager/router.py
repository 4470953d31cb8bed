"""Which replica a request goes to."""

from __future__ import annotations

from collections.abc import Sequence

from kvmanager.replica import Replica
from kvmanager.request import Request

ABOUT_EQUAL = 1.25
"""Estimates no further apart say nothing: the rates they rest on are measured, and measure that differently."""


def choose(request: Request, replicas: Sequence[Replica]) -> Replica:
    """The replica that will give the first token soonest.

    That is the cache-aware choice of Mooncake's conductor (Qin et al., FAST 2025, algorithm 1): time in the queue plus
    time to prefill what is not cached. Both are counted in tokens to compute, over the replica's measured prefill rate;
    a step that also decodes for others is longer, so the sum grows with the part of the replica's rows in use. Among
    those that are about equal the one with the fewest requests is taken.

    Sets `request.num_uncached`, which counts for those who come after it.
    """
    if len(replicas) == 1:
        request.num_uncached = _num_tokens(request)
        return replicas[0]
    uncached = {replica: _num_uncached(request, replica) for replica in replicas}
    seconds = {replica: _seconds_to_first_token(uncached[replica], replica) for replica in replicas}
    limit = min(seconds.values()) * ABOUT_EQUAL
    about_equal = [replica for replica in replicas if seconds[replica] <= limit]
    chosen = min(about_equal, key=lambda replica: (replica.num_requests, seconds[replica]))
    request.num_uncached = uncached[chosen]
    return chosen


def _num_tokens(request: Request) -> int:
    return sum(len(sequence.token_ids) for sequence in request.unfinished())


def _num_uncached(request: Request, replica: Replica) -> int:
    """Tokens that the replica would have to compute; what its steps under way compute for others is cached already."""
    memory = replica.memory
    return _num_tokens(request) - len(memory.lookup.match(request.unfinished()[0])) * memory.block_size


def _seconds_to_first_token(num_uncached: int, replica: Replica) -> float:
    scheduler = replica.scheduler
    queued = sum(each.num_to_prefill for each in scheduler.prefilling.values())
    queued += sum(waiting.num_uncached for waiting in scheduler.waiting)
    busy = scheduler.num_rows / scheduler.limits.max_sequences
    speed = replica.memory.costs.speeds.prefill_tokens_per_s or 1.0
    return (queued + num_uncached) * (1 + busy) / speed
