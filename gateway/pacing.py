"""How often a stream's tokens leave.

A response costs the same whether it carries one token or ten. Where few streams run, each token leaves at once; where
many do, tokens of a stream that follow one another closely leave together, so that writing them does not take from
computing them more than it has to.
"""

from __future__ import annotations

LONGEST_INTERVAL = 0.2
"""Seconds that tokens are kept back for at most where the client did not ask for it."""

_SHORTEST_INTERVAL = 0.01
"""Less than this saves nothing: to wake up costs as much as a response."""


def response_interval(num_streams: int, responses_per_second: float) -> float:
    """Seconds in which each stream gets one response, or 0 where each token leaves at once.

    Args:
        num_streams: How many run.
        responses_per_second: How many may leave before some are joined, over all streams.
    """
    interval = min(num_streams / responses_per_second, LONGEST_INTERVAL)
    return interval if interval >= _SHORTEST_INTERVAL else 0.0
