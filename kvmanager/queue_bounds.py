"""How many requests may wait, and what those are told that are too many."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from kvmanager.errors import QueueFull
from kvmanager.limits import Limits
from kvmanager.spec import RequestSpec

MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.1, 30.0

DEPARTURES = 64
"""So many are looked back on to tell how fast a queue moves."""


@dataclass(slots=True)
class _Line:
    """Requests that wait for their first turn: a tenant's, or all.

    Attributes:
        since: when the first one came into the empty line.
        departures: when the last ones left it.
        returns: when those who were refused will be back, as they were advised (a heap).
    """

    since: float
    num_requests: int = 0
    num_tokens: int = 0
    departures: deque[float] = field(default_factory=lambda: deque(maxlen=DEPARTURES))
    returns: list[float] = field(default_factory=list)

    def check(self, num_tokens: int, max_requests: int, max_tokens: int, whose: str, now: float) -> None:
        """Whether a prompt of so many tokens may join; limits of 0 are none.

        A prompt that is longer than the limit is let in alone: there it delays nobody.

        Raises:
            QueueFull: it may not.
        """
        if max_requests and self.num_requests >= max_requests:
            places = self.num_requests - max_requests + 1
            message = f"the queue is full: {max_requests} requests {whose} are waiting, which is the limit"
            raise QueueFull(message, self._advise(places, now))
        excess = self.num_tokens + num_tokens - max_tokens
        if max_tokens and excess > 0 and self.num_requests:
            places = min(self.num_requests, -(-excess * self.num_requests // self.num_tokens))
            message = f"the queue is full: no more than {max_tokens} tokens of prompts {whose} may wait"
            raise QueueFull(message, self._advise(places, now))

    def _advise(self, num_places: int, now: float) -> float:
        """In how many seconds that many will have left, after those that whoever was refused before waits for.

        The line goes on as fast as it did of late. One departure in one second is added, for a line that is too young
        to tell.
        """
        while self.returns and self.returns[0] <= now:
            heapq.heappop(self.returns)
        start = self.departures[0] if len(self.departures) == DEPARTURES else self.since
        rate = (len(self.departures) + 1) / (now - start + 1.0)
        seconds = (len(self.returns) + num_places) / rate
        if seconds < MAX_RETRY_SECONDS:
            heapq.heappush(self.returns, now + seconds)
        return min(max(seconds, MIN_RETRY_SECONDS), MAX_RETRY_SECONDS)


class QueueBounds:
    """Counts requests from when they are accepted until they are admitted for the first time, or end before that.

    Requests that have to wait again do not count: they were let in.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._all = _Line(0.0)
        self._tenants: dict[str, _Line] = {}
        self._waiting: dict[Hashable, tuple[str, int]] = {}

    def check(self, spec: RequestSpec, now: float) -> None:
        """Whether one more may wait. What a tenant is told of its own limits depends on nobody else.

        Raises:
            QueueFull: it may not.
        """
        limits, num_tokens = self._limits, len(spec.prompt_token_ids)
        own = self._tenants.get(spec.tenant)
        if own is not None:
            most, most_tokens = limits.max_waiting_requests_per_tenant, limits.max_waiting_tokens_per_tenant
            try:
                own.check(num_tokens, most, most_tokens, f"of {spec.tenant}", now)
            except QueueFull as refusal:
                refusal.tenant = spec.tenant
                raise
        self._all.check(num_tokens, limits.max_waiting_requests, limits.max_waiting_tokens, "in all", now)

    def joined(self, spec: RequestSpec, now: float) -> None:
        """A request waits for its first turn."""
        num_tokens = len(spec.prompt_token_ids)
        self._waiting[spec.handle] = spec.tenant, num_tokens
        if not self._all.num_requests:
            self._all = _Line(now)
        for line in (self._all, self._tenants.setdefault(spec.tenant, _Line(now))):
            line.num_requests += 1
            line.num_tokens += num_tokens

    def left(self, handle: Hashable, now: float) -> None:
        """A request is admitted, or over. If it waited for its first turn, it does not any more."""
        tenant, num_tokens = self._waiting.pop(handle, (None, 0))
        if tenant is None:
            return
        own = self._tenants[tenant]
        for line in (self._all, own):
            line.num_requests -= 1
            line.num_tokens -= num_tokens
            line.departures.append(now)
        if not own.num_requests:
            del self._tenants[tenant]

    def check_integrity(self, waiting: set[Hashable]) -> None:
        """Asserts that those count that wait for their first turn, and nobody else."""
        assert self._waiting.keys() == waiting
        assert self._all.num_requests == len(waiting)
        assert sum(line.num_requests for line in self._tenants.values()) == len(waiting)
        assert self._all.num_tokens == sum(num_tokens for _, num_tokens in self._waiting.values())
