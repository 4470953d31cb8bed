"""How often a stream's tokens leave.

A response costs the same whether it carries one token or ten. Alone, a stream gets each token at once; where many run,
tokens of one stream that follow one another closely leave together, so that writing them does not take from computing
them more than it has to.
"""

from __future__ import annotations

RESPONSES_PER_SECOND = 500
"""How many of all streams together leave before those of one stream are joined: more would take some percent of a
processor from the model, where it computes on the same one."""

LONGEST_INTERVAL = 0.1
"""Seconds that tokens are kept back for at most: ten times a second is often enough for an eye."""

_SHORTEST_INTERVAL = 0.01
"""What is less than this saves nothing: waking up costs as much as a response."""


def response_interval(num_streams: int, wanted: float = 0.0) -> float:
    """Seconds in which a stream gets one response, or 0 where each token leaves at once.

    Args:
        num_streams: How many run.
        wanted: What the client asked for.
    """
    interval = min(num_streams / RESPONSES_PER_SECOND, LONGEST_INTERVAL)
    return max(interval if interval >= _SHORTEST_INTERVAL else 0.0, wanted)
