"""The tenant that got least goes first."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from kvmanager.policies.policy import Policy, Rank
from kvmanager.request import Request

PROMPT_TOKEN_COST = 1.0
OUTPUT_TOKEN_COST = 2.0
"""What a token counts in a tenant's service, as in the paper below: an output token costs a whole pass."""


class Fair(Policy):
    """The virtual token counter, weighted (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024).

    Each tenant's counter grows with the service it gets, divided by its weight, and the lowest counter goes first. A
    tenant that comes back after it had nothing to do is lifted to the lowest counter of those that have: idle time
    can't be saved up.

    Args:
        weights: by tenant; others have weight 1.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._counters: defaultdict[str, float] = defaultdict(float)
        self._active: Counter[str] = Counter()

    def reweigh(self, weights: Mapping[str, float]) -> None:
        self._weights = weights

    def order(self, request: Request) -> Rank:
        return (request.arrival,)

    def rank(self, request: Request) -> Rank:
        return (self._counters[request.spec.tenant], request.arrival)

    def arrived(self, tenant: str) -> None:
        if tenant not in self._active:
            # With nobody active the last one's level holds: the highest, for counters only grow.
            levels = [self._counters[other] for other in self._active]
            floor = min(levels) if levels else max(self._counters.values(), default=0.0)
            self._counters[tenant] = max(self._counters[tenant], floor)
        self._active[tenant] += 1

    def left(self, tenant: str) -> None:
        self._active[tenant] -= 1
        if not self._active[tenant]:
            del self._active[tenant]

    def served(self, tenant: str, prompt_tokens: int, output_tokens: int) -> None:
        service = PROMPT_TOKEN_COST * prompt_tokens + OUTPUT_TOKEN_COST * output_tokens
        self._counters[tenant] += service / self._weights.get(tenant, 1.0)
