"""What must hold between requests, queues, replicas and pins at any time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping

from kvmanager.pins import LostPin, Pins
from kvmanager.queue_bounds import QueueBounds
from kvmanager.replica import Replica
from kvmanager.request import Request, RequestState


def check_places(
    requests: Mapping[Hashable, Request],
    homes: Mapping[Hashable, Replica],
    homeless: Mapping[Hashable, Request],
    replicas: Mapping[str, Replica],
) -> None:
    """Asserts that every request is in one place."""
    placed: Counter[Hashable] = Counter(list(homeless))
    for replica in replicas.values():
        scheduler = replica.scheduler
        here = [*(each.spec.handle for each in scheduler.waiting), *scheduler.running, *scheduler.swapped]
        assert all(homes[handle] is replica for handle in here)
        placed.update(here)
    assert placed == Counter(list(requests)), "a request is nowhere, or twice"


def check_promises(pins: Pins, replicas: Mapping[str, Replica]) -> None:
    """Asserts that as much is promised as pins have or will have."""
    for replica in replicas.values():
        for account in replica.memory.pool.accounts:
            promised = sum(pin.charges[account.owner] for pin in pins if pin.replica is replica)
            assert account.num_pinned == promised, "a pin's promise is wrong"


def check_queue(bounds: QueueBounds, requests: Mapping[Hashable, Request]) -> None:
    """Asserts that those count as waiting that do for the first time."""
    unbegun = {handle for handle, each in requests.items() if each.state is RequestState.WAITING}
    bounds.check_integrity({handle for handle in unbegun if not isinstance(handle, LostPin)})
