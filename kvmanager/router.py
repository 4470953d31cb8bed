"""Which replica a request goes to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from kvmanager.replica import Replica
from kvmanager.request import Request

ABOUT_EQUAL = 1.25
"""Estimates no further apart say nothing: the rates they rest on are measured, and measure that differently."""


class Router:
    """Chooses the replica that will give the first token soonest.

    That is the cache-aware choice of Mooncake's conductor (Qin et al., FAST 2025, algorithm 1): time in the queue plus
    time to prefill what is not cached. Both are counted in tokens to compute, over the replica's measured prefill rate;
    a step that also decodes for others is longer, so the sum grows with the part of the replica's rows in use. Among
    those that are about equal the one with the fewest requests is taken.

    What the prompts of a replica's other requests begin with counts as cached there: they come first, and compute it.
    So requests that arrive together are not sent to the one replica that has their prefix already as if each of them
    had to compute it anew anywhere else.
    """

    def __init__(self, prefix_caching: bool) -> None:
        self._prefix_caching = prefix_caching
        self._expected: dict[Replica, Counter[bytes]] = {}
        """How many requests of each replica have the block in their prompts, by identity."""
        self._placed: dict[Request, tuple[Replica, list[bytes]]] = {}

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        """Where it should go. Sets `num_uncached`, which counts for those who come after it."""
        if len(replicas) == 1:
            request.num_uncached = _num_tokens(request)
            return replicas[0]
        uncached = {replica: self._num_uncached(request, replica) for replica in replicas}
        seconds = {replica: _seconds_to_first_token(uncached[replica], replica) for replica in replicas}
        limit = min(seconds.values()) * ABOUT_EQUAL
        about_equal = [replica for replica in replicas if seconds[replica] <= limit]
        chosen = min(about_equal, key=lambda replica: (replica.num_requests, seconds[replica]))
        request.num_uncached = uncached[chosen]
        return chosen

    def _num_uncached(self, request: Request, replica: Replica) -> int:
        """Tokens that the replica would have to compute for it."""
        if not self._prefix_caching:
            return _num_tokens(request)
        lookup, sequence = replica.memory.lookup, request.unfinished()[0]
        num_blocks = len(lookup.match(sequence))
        if expected := self._expected.get(replica):
            for content in lookup.contents_before_last_token(sequence)[num_blocks:]:
                if content.identity not in expected:
                    break
                num_blocks += 1
        return _num_tokens(request) - num_blocks * replica.memory.block_size

    def placed(self, request: Request, replica: Replica) -> None:
        """It goes there. Without a choice its blocks have no names yet, and nobody has asked for them."""
        identities = [content.identity for content in request.unfinished()[0].contents]
        if identities:
            self._expected.setdefault(replica, Counter()).update(identities)
            self._placed[request] = replica, identities

    def left(self, request: Request) -> None:
        """It is over, or goes elsewhere."""
        replica, identities = self._placed.pop(request, (None, []))
        if replica is None:
            return
        expected = self._expected[replica]
        for identity in identities:
            expected[identity] -= 1
            if not expected[identity]:
                del expected[identity]

    def lost(self, replica: Replica) -> None:
        """The replica is gone."""
        self._expected.pop(replica, None)
        self._placed = {request: place for request, place in self._placed.items() if place[0] is not replica}

    def check_integrity(self, homes: Mapping[Request, Replica]) -> None:
        """Asserts that each replica is expected to have what its own requests begin with, and nothing else."""
        wanted: dict[Replica, Counter[bytes]] = {replica: Counter() for replica in self._expected}
        for request, (replica, identities) in self._placed.items():
            assert homes[request] is replica
            wanted[replica].update(identities)
        assert self._expected == wanted


def _num_tokens(request: Request) -> int:
    return sum(len(sequence.token_ids) for sequence in request.unfinished())


def _seconds_to_first_token(num_uncached: int, replica: Replica) -> float:
    scheduler = replica.scheduler
    queued = sum(each.num_to_prefill for each in scheduler.prefilling.values())
    queued += sum(waiting.num_uncached for waiting in scheduler.waiting)
    busy = scheduler.num_rows / scheduler.limits.max_sequences
    speed = replica.memory.costs.speeds.prefill_tokens_per_s or 1.0
    return (queued + num_uncached) * (1 + busy) / speed
