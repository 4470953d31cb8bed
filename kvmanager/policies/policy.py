"""What a policy decides."""

from __future__ import annotations

from collections.abc import Mapping

from kvmanager.request import Request

Rank = tuple[float, ...]
"""A place in line: lower ones are admitted first, and preempted last."""


class Policy:
    """Ranks requests. The order of arrival breaks ties, so every rank is unique.

    A policy never reads a clock: a rank that is to improve while a request waits is one that does not get worse while
    later arrivals start behind it.
    """

    def order(self, request: Request) -> Rank:
        """Its place among the requests of its own tenant. Never changes."""
        raise NotImplementedError

    def rank(self, request: Request) -> Rank:
        """Its place among all requests at this moment. Agrees with `order` within a tenant."""
        return self.order(request)

    def arrived(self, tenant: str) -> None:
        """A request of this tenant is about to wait."""

    def left(self, tenant: str) -> None:
        """A request of this tenant is over."""

    def served(self, tenant: str, prompt_tokens: int, output_tokens: int) -> None:
        """So many tokens are computed for this tenant in the step being built."""

    def reweigh(self, weights: Mapping[str, float]) -> None:
        """Tenants have other weights from here on; those that are not named have weight 1."""
