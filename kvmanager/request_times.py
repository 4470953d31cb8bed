"""Where a request's time goes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RequestTimes:
    """Seconds that a request has spent up to its last change of state.

    Attributes:
        waiting: before it was first admitted.
        running: with its blocks, from its admissions on.
        preempted: without its blocks again, in line or swapped out.
        prefill: of the running time what came before its first token; None while it has none.
        preemptions: how often it gave its blocks back, or its executor was lost.
    """

    waiting: float = 0.0
    running: float = 0.0
    preempted: float = 0.0
    prefill: float | None = None
    preemptions: int = 0

    @property
    def to_first_token(self) -> float:
        """Of the running time what came before its first token; all of it while there is none."""
        return self.running if self.prefill is None else self.prefill

    @property
    def decode(self) -> float:
        """Of the running time what came after its first token."""
        return self.running - self.to_first_token
