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
    """
    if len(replicas) == 1:
        return replicas[0]
    seconds = {replica: _seconds_to_first_token(request, replica) for replica in replicas}
    limit = min(seconds.values()) * ABOUT_EQUAL
    about_equal = [replica for replica in replicas if seconds[replica] <= limit]
    return min(about_equal, key=lambda replica: (replica.num_requests, seconds[replica]))


def _seconds_to_first_token(request: Request, replica: Replica) -> float:
    scheduler, memory = replica.scheduler, replica.memory
    sequences = request.unfinished()
    cached = len(memory.lookup.match(sequences[0])) * memory.block_size
    own = sum(len(each.token_ids) for each in sequences) - cached
    queued = sum(each.num_to_prefill for each in scheduler.prefilling.values())
    queued += sum(len(waiting.spec.prompt_token_ids) for waiting in scheduler.waiting)
    busy = scheduler.num_rows / scheduler.limits.max_sequences
    speed = memory.costs.speeds.prefill_tokens_per_s or 1.0
    return (queued + own) * (1 + busy) / speed
