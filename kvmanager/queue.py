"""The order in which waiting requests are admitted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator

from kvmanager.request import Request


class FcfsQueue:
    """First come, first served. A preempted request came before everything that waits."""

    def __init__(self) -> None:
        self._requests: OrderedDict[Hashable, Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def push(self, request: Request) -> None:
        self._requests[request.spec.handle] = request

    def push_preempted(self, request: Request) -> None:
        self.push(request)
        self._requests.move_to_end(request.spec.handle, last=False)

    def head(self) -> Request | None:
        return next(iter(self._requests.values()), None)

    def remove(self, request: Request) -> None:
        """Takes a request out, if it is in."""
        self._requests.pop(request.spec.handle, None)
