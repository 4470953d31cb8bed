"""Higher priority first, with ageing."""

from __future__ import annotations

from kvmanager.policies.policy import Policy, Rank
from kvmanager.request import Request

SECONDS_PER_LEVEL = 10.0
"""One level of priority is worth so much waiting."""


class Priority(Policy):
    """Priority plus time waited.

    Priority + (now - arrived) / SECONDS_PER_LEVEL orders any two requests the same way at all times, so it can be
    compared without `now`. A request of lower priority is overtaken only by those that arrive within
    SECONDS_PER_LEVEL for each level between them: nobody starves.
    """

    def order(self, request: Request) -> Rank:
        return (request.arrived - request.spec.priority * SECONDS_PER_LEVEL, request.arrival)
