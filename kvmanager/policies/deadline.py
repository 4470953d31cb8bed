"""Earliest deadline first."""

from __future__ import annotations

from kvmanager.policies.policy import Policy, Rank
from kvmanager.request import Request

PATIENCE_SECONDS = 60.0
"""When a request without a deadline wants to be done. Without it, it would starve behind those that have one."""


class Deadline(Policy):
    """By the time at which the answer is due."""

    def order(self, request: Request) -> Rank:
        deadline = request.spec.deadline
        return (request.arrived + PATIENCE_SECONDS if deadline is None else deadline, request.arrival)
