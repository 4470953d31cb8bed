"""Decisions, as metrics and traces read them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum


class EventKind(Enum):
    """What was decided.

    QUEUED: a request arrived; `value` is the number of output tokens that it has already.
    WAITED: the head of the queue was not admitted; `detail` says why ("blocks", "tenant_limit", "max_sequences",
        "isolation"), `amount` how many blocks or sequences are missing. Once for each reason.
    ADMITTED: it has its blocks on `executor`; `value` is the number of tokens found in the prefix cache.
    PREFILL: a chunk of `value` tokens was put into step `step` of `executor`.
    FIRST_TOKEN: the first sequence has its first token.
    PREEMPTED: it gave its blocks back; `detail` says how ("swap", "recompute", "executor lost"), `cause` why ("blocks",
        "tenant_limit", or "leader": whoever filled its sequences' prompt has ended), and `other` for which request.
    FINISHED: it is over; `detail` says how, `cause` why it is an error, `value` is the number of output tokens.
    STEP_DONE: the result of step `step` of `executor` is applied. `handle` is None.
    """

    QUEUED = "queued"
    WAITED = "waited"
    ADMITTED = "admitted"
    PREFILL = "prefill"
    FIRST_TOKEN = "first_token"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    STEP_DONE = "step_done"


@dataclass(slots=True)  # not frozen: that would make each one three times as dear
class Event:
    """One decision at one time (seconds on the caller's clock)."""

    kind: EventKind
    time: float
    handle: Hashable
    step: int = 0
    value: int = 0
    detail: str = ""
    executor: str = ""
    cause: str = ""
    amount: int = 0
    other: Hashable = None


EventSink = Callable[[Event], None]
