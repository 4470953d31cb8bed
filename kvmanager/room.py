"""Finds blocks for sequences that decode, by preempting others where it must."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping

from kvmanager.accounts import Charges
from kvmanager.memory import Memory
from kvmanager.policies import Policy
from kvmanager.request import Request, RequestState, Sequence

Preempt = Callable[[Request, float, str, Request], None]


class Room:
    """Decides who gives way when memory is short.

    Args:
        running: the requests that can be preempted.
        preempt: takes all blocks of one of them back, for want of what, and for whom.
    """

    def __init__(self, memory: Memory, policy: Policy, running: Mapping[Hashable, Request], preempt: Preempt) -> None:
        self._memory = memory
        self._policy = policy
        self._running = running
        self._preempt = preempt

    def make(self, due: list[Sequence], now: float) -> tuple[list[Sequence], list[Sequence]]:
        """Sees to it that due sequences can have the blocks they need.

        Returns:
            Those that can, and those that have to wait. The rest was preempted.
        """
        if self._memory.has_plenty(len(due)):
            return due, []
        charges = self._memory.blocks_to_write(due)
        if not charges or not self._memory.shortage(charges):
            return due, []
        groups: dict[Request, list[Sequence]] = {}
        for sequence in due:
            groups.setdefault(sequence.request, []).append(sequence)
        ready: list[Sequence] = []
        waiting: list[Sequence] = []
        promised: Charges = Counter()
        for request in sorted(groups, key=self._policy.rank):
            if request.state is not RequestState.RUNNING:
                continue  # preempted just now
            needed = self._memory.blocks_to_write(groups[request])
            # Those behind must not take what the first in line is waiting for.
            if needed and (waiting or not self._make_for(request, promised + needed, now)):
                waiting += groups[request]
            else:
                ready += groups[request]
                promised += needed
        # A request that could go may have been preempted after all, where only its blocks helped another.
        return _still_running(ready), _still_running(waiting)

    def _make_for(self, request: Request, charges: Charges, now: float) -> bool:
        """Preempts the last in the policy's order until these blocks can be had.

        Returns:
            False when the request has to wait: for steps under way that still use what was given back, or because its
            own turn to be preempted came.
        """
        while shortage := self._memory.shortage(charges):
            if not self._memory.shortage(charges, after_retirement=True):
                return False
            victim = self._victim(request, shortage)
            self._preempt(victim, now, shortage, request)
            if victim is request:
                return False
        return True

    def _victim(self, request: Request, shortage: str) -> Request:
        """The last in the policy's order among those whose blocks would help.

        Who has no more than its tenant's reservation is left alone.
        """
        if shortage == "tenant_limit":
            helping = [each for each in self._running.values() if each.owner == request.owner]
        else:
            helping = [each for each in self._running.values() if not self._within_reservation(each.owner)]
        return max(helping, key=self._policy.rank, default=request)

    def _within_reservation(self, owner: str) -> bool:
        account = self._memory.pool.accounts[owner]
        return 0 < account.num_charged <= account.reserved


def _still_running(sequences: list[Sequence]) -> list[Sequence]:
    return [sequence for sequence in sequences if sequence.request.state is RequestState.RUNNING]
