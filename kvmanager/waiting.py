"""Requests that wait for admission."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Hashable, Iterator
from itertools import count

from kvmanager.policies import Policy, Rank
from kvmanager.request import Request


class WaitingQueue:
    """A line for each tenant, ordered by the policy.

    So a tenant that has to wait holds up nobody else, and choosing the next request costs a look at each tenant's
    first, however many wait.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._requests: dict[Hashable, tuple[Request, int]] = {}
        self._lines: dict[str, list[tuple[Rank, int, Request]]] = {}
        self._tickets = count()
        self.tenants: Counter[str] = Counter()
        """How many requests of each tenant wait."""

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return (request for request, _ in self._requests.values())

    def push(self, request: Request) -> None:
        """Puts a request in line."""
        ticket = next(self._tickets)
        self._requests[request.spec.handle] = request, ticket
        self.tenants[request.spec.tenant] += 1
        line = self._lines.setdefault(request.spec.tenant, [])
        if len(line) > 2 * len(self._requests) + 64:
            line[:] = [entry for entry in line if self._stands(entry)]
            heapq.heapify(line)
        heapq.heappush(line, (self._policy.order(request), ticket, request))

    def remove(self, request: Request) -> None:
        """Takes a request out, if it is in. Its place in line is left empty until its turn would come."""
        if self._requests.pop(request.spec.handle, None) is not None:
            tenant = request.spec.tenant
            self.tenants[tenant] -= 1
            if not self.tenants[tenant]:
                del self.tenants[tenant]

    def _stands(self, entry: tuple[Rank, int, Request]) -> bool:
        """Whether this place in line is taken: a request may have left, and come back to another place."""
        return self._requests.get(entry[2].spec.handle) == (entry[2], entry[1])

    def head(self, without: Collection[str] = ()) -> Request | None:
        """The next request, except for those of some tenants."""
        heads = []
        for tenant in list(self._lines):
            line = self._lines[tenant]
            while line and not self._stands(line[0]):
                heapq.heappop(line)
            if not line:
                del self._lines[tenant]
            elif tenant not in without:
                heads.append(line[0][2])
        if len(heads) < 2:
            return heads[0] if heads else None
        return min(heads, key=self._policy.rank)
