"""How often a stream's tokens leave.

A response costs the same whether it carries one token or ten. So tokens of a stream that follow one another closely
leave together, the more of them the more streams there are: writing them must not take from computing them more than it
has to.
"""

from __future__ import annotations

SHORTEST_INTERVAL = 0.02
"""Seconds: no eye sees more than fifty changes a second."""

LONGEST_INTERVAL = 0.2
"""Seconds that tokens are kept back for at most where the client did not ask for it."""


def response_interval(num_streams: int, responses_per_second: float) -> float:
    """Seconds in which each stream gets at most one response.

    Args:
        num_streams: How many run.
        responses_per_second: How many may leave before more are joined, over all streams.
    """
    return min(max(num_streams / responses_per_second, SHORTEST_INTERVAL), LONGEST_INTERVAL)
