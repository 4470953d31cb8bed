"""Where a request could run."""

from __future__ import annotations

from collections.abc import Iterable

from kvmanager.errors import InvalidRequest
from kvmanager.replica import Replica
from kvmanager.request import Request
from kvmanager.request_checks import check_num_sequences


def rooms_for(request: Request, replicas: Iterable[Replica]) -> dict[Replica, int]:
    """How long the request's sequences may get, on each replica that can take it.

    Raises:
        InvalidRequest: there are replicas, and none can.
    """
    rooms: dict[Replica, int] = {}
    refusal: InvalidRequest | None = None
    for replica in replicas:
        try:
            check_num_sequences(request.spec, replica.scheduler.limits.max_sequences)
            rooms[replica] = replica.memory.room_for(request)
        except InvalidRequest as error:
            refusal = error
    if refusal is not None and not rooms:
        raise refusal
    return rooms


def can_finish(request: Request, replica: Replica) -> bool:
    """Whether a request that is on a replica can run to its end there, whatever others do."""
    try:
        return replica.memory.room_for(request) >= request.max_length
    except InvalidRequest:
        return False


def can_relieve(replica: Replica, request: Request) -> bool:
    """Whether a replica with nobody in line could begin at once with a request from another one's."""
    memory, scheduler = replica.memory, replica.scheduler
    if memory.pool.num_available <= memory.capacity.worst_case(request.spec, request.max_length):
        return False
    if scheduler.num_rows + request.spec.num_sequences > scheduler.limits.max_sequences:
        return False
    return can_finish(request, replica)


def settle_quotas(replica: Replica, begun: Iterable[Request]) -> None:
    """Lets changed quotas hold on a replica if all that goes on there, and all that is pinned, leaves room for them."""
    accounts = replica.memory.pool.accounts
    if accounts.promises_fit and all(can_finish(request, replica) for request in begun):
        accounts.settle()
