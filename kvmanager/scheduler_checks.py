"""What must hold between the places where one executor's requests are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping

from kvmanager.request import Request, RequestState
from kvmanager.waiting import WaitingQueue


def check_requests(
    waiting_queue: WaitingQueue, running: Mapping[Hashable, Request], swapped: Mapping[Hashable, Request]
) -> None:
    """Asserts that every request is in one place and every sequence in its state's shape."""
    waiting = {request.spec.handle: request for request in waiting_queue}
    assert waiting_queue.tenants == Counter(request.spec.tenant for request in waiting.values())
    assert not set(waiting) & set(running) | set(waiting) & set(swapped)
    assert not set(running) & set(swapped)
    for request in waiting.values():
        assert request.unfinished(), "a finished request waits"
        assert request.state in (RequestState.WAITING, RequestState.PREEMPTED)
        assert not any(sequence.table or sequence.host_table for sequence in request.sequences)
    for request in swapped.values():
        assert request.state is RequestState.SWAPPED
        assert all(sequence.host_table and not sequence.table for sequence in request.unfinished())
    for request in running.values():
        assert request.unfinished(), "a finished request runs"
        assert request.state is RequestState.RUNNING
        for sequence in request.sequences:
            assert bool(sequence.table) is not sequence.finished
            assert not sequence.host_table
