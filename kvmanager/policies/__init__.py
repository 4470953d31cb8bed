"""In which order requests are admitted, and in which they are preempted."""

from __future__ import annotations

from collections.abc import Mapping

from kvmanager.accounts import Quota
from kvmanager.policies.deadline import Deadline
from kvmanager.policies.fair import Fair
from kvmanager.policies.fcfs import Fcfs
from kvmanager.policies.policy import Policy, Rank
from kvmanager.policies.priority import Priority

POLICIES = ("fcfs", "priority", "fair", "deadline")

__all__ = ["POLICIES", "Policy", "Rank", "make_policy"]


def make_policy(name: str, quotas: Mapping[str, Quota]) -> Policy:
    """Raises ValueError for an unknown name."""
    if name == "fcfs":
        return Fcfs()
    if name == "priority":
        return Priority()
    if name == "fair":
        return Fair({owner: quota.weight for owner, quota in quotas.items()})
    if name == "deadline":
        return Deadline()
    raise ValueError(f"policy is {name!r}; there are {', '.join(POLICIES)}")
