"""First come, first served: the default, and the paper's."""

from __future__ import annotations

from kvmanager.policies.policy import Policy, Rank
from kvmanager.request import Request


class Fcfs(Policy):
    """In order of arrival. A preempted request came before everything that waits."""

    def order(self, request: Request) -> Rank:
        return (request.arrival,)
