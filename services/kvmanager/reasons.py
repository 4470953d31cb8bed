"""Decisions in words, for people.

A tenant is told what happened to its own requests, but no number and no name from which others' use could be learnt.
"""

from __future__ import annotations

from collections import Counter

from kvmanager.events import Event
from kvmanager.request import PrefixMatchEnd, Request, RequestState
from services.kvmanager.timelines import Outcome, Preemption

_WAITING = {
    "blocks": "waits for free blocks",
    "tenant_limit": "its tenant has all the blocks that it may have",
    "max_sequences": "as many sequences run as may run at once",
    "isolation": "runs alone, for executors were lost under it: waits until nothing else runs",
}

_PREEMPTED = {
    "swap": "its blocks were moved to the host tier",
    "recompute": "its blocks were given up, to be computed again",
    "executor lost": "its executor was lost",
}

_MATCH_ENDS = {
    PrefixMatchEnd.NEVER_SEEN: "no more of its prompt was in the prefix cache",
    PrefixMatchEnd.EVICTED: "more of its prompt was in the prefix cache until it was evicted",
    PrefixMatchEnd.OTHER_SCOPE: "more of its prompt is in the prefix cache, in another scope",
    PrefixMatchEnd.PARTIAL_BLOCK: "the rest of its prompt does not fill a block",
    PrefixMatchEnd.LAST_TOKEN: "all of its prompt but the last token was in the prefix cache",
}


def of_waiting(reason: str, missing: int, tenant: str) -> str:
    """Why a request is not admitted.

    Args:
        reason: as of `kvmanager.events.EventKind.WAITED`.
        missing: how many blocks or sequences are too few.
        tenant: who is told; empty: the operator.
    """
    words = _WAITING.get(reason, reason)
    if tenant or not missing:
        return words
    return f"{words}: {missing} {'sequence' if reason == 'max_sequences' else 'block'}{'s'[: missing != 1]} too few"


def of_state(request: Request, tenant: str) -> str:
    """Why a request that has not ended does not run; nothing where it does."""
    if request.state is RequestState.RUNNING:
        return ""
    waits = of_waiting(request.waiting_reason, request.num_missing, tenant) if request.waiting_reason else "in line"
    match request.state:
        case RequestState.SWAPPED:
            return f"swapped out; {waits}"
        case RequestState.PREEMPTED:
            return f"to be computed again; {waits}"
        case _:
            return waits


def of_preemption(preemption: Preemption, tenant: str) -> str:
    """How a request gave its blocks back, and for whom."""
    event, beneficiary = preemption.event, preemption.beneficiary
    words = _PREEMPTED.get(event.detail, event.detail)
    if event.cause == "leader":
        return f"{words}: the sequence that computed the prompt for it has ended"
    if event.cause == "tenant_limit":
        words += ", for its tenant has all the blocks that it may have"
    elif event.cause == "blocks":
        words += ", for want of free blocks"
    if beneficiary is None or (tenant and beneficiary[0] != tenant):
        return words
    whose = f"request {beneficiary[1]}" if tenant else f"request {beneficiary[1]} of {beneficiary[0]}"
    return f"{words}; makes room for {whose}"


def of_admission(match_end: PrefixMatchEnd | None, first: bool) -> str:
    """Why no more of the prompt was found when a request was admitted for the first time; then, that it goes on."""
    if not first:
        return "goes on"
    return "" if match_end is None else _MATCH_ENDS[match_end]


def of_queueing(event: Event) -> str:
    """What a request had when it came."""
    return f"goes on with {event.value} tokens that it had elsewhere" if event.value else ""


def of_end(outcome: Outcome) -> str:
    """How a request ended."""
    if outcome.error:
        return outcome.error
    if outcome.how == "abort":
        return "its client has left, or wants no more"
    reasons = Counter(reason.value for reason in outcome.finished)
    if reasons.total() == 1:
        return next(iter(reasons))
    return ", ".join(f"{number} x {reason}" for reason, number in sorted(reasons.items())) or outcome.how
