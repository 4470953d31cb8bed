"""What a step and the queue may hold."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvmanager.capacity import Capacity


@dataclass(frozen=True, slots=True)
class Limits:
    """What a step and the queue may hold.

    Attributes:
        max_batched_tokens: tokens computed in one step, decodes and prefill chunks together.
        max_sequences: sequences running at once on one executor.
        max_waiting_requests: requests in the queue, those of all executors together; 0 for any number.
        max_waiting_tokens: tokens of their prompts; 0 for any number.
        max_waiting_requests_per_tenant, max_waiting_tokens_per_tenant: the same for each tenant.
    """

    max_batched_tokens: int
    max_sequences: int
    max_waiting_requests: int
    max_waiting_tokens: int = 0
    max_waiting_requests_per_tenant: int = 0
    max_waiting_tokens_per_tenant: int = 0

    def __post_init__(self) -> None:
        if self.max_batched_tokens < self.max_sequences:
            raise ValueError(
                f"max_batched_tokens is {self.max_batched_tokens}; it must reach max_sequences, {self.max_sequences}, "
                "or not every running sequence could get its token in a step"
            )

    def within(self, capacity: Capacity) -> Limits:
        """The smaller of these and what an executor has memory for."""
        tokens = min(self.max_batched_tokens, capacity.max_batched_tokens or self.max_batched_tokens)
        sequences = min(self.max_sequences, capacity.max_sequences or self.max_sequences, tokens)
        return replace(self, max_batched_tokens=tokens, max_sequences=sequences)
