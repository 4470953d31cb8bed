"""What the KV manager tells an executor in one step, what comes back, and what gateways hear of it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from kvmanager.request import FinishReason


@dataclass(frozen=True, slots=True)
class NewSequence:
    """Everything about a sequence that starts, or starts again after preemption."""

    sequence_id: int
    token_ids: list[int]
    prompt_length: int
    num_computed: int
    block_table: list[int]
    sampling: object
    sample_index: int


@dataclass(slots=True)
class StepBatch:
    """One step. The executor applies the attributes in this order.

    Attributes:
        forget: sequences that are over or preempted.
        new_sequences: replace whatever is known of them.
        table_edits: (row, logical index, block id); an append where the index is the table's length.
        block_copies: (source, destination), before any row writes.
        row_sequence_ids, row_num_tokens: one row for each sequence that computes tokens.
        forks: parent -> children that copy it when it samples in this step.
    """

    step: int
    forget: list[int] = field(default_factory=list)
    new_sequences: list[NewSequence] = field(default_factory=list)
    table_edits: list[tuple[int, int, int]] = field(default_factory=list)
    block_copies: list[tuple[int, int]] = field(default_factory=list)
    row_sequence_ids: list[int] = field(default_factory=list)
    row_num_tokens: list[int] = field(default_factory=list)
    forks: dict[int, list[int]] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return not (self.row_sequence_ids or self.forget)


@dataclass(frozen=True, slots=True)
class StepResult:
    """The tokens that one step sampled. `logprobs` is aligned with them, or empty; it is passed on unread."""

    step: int
    sequence_ids: list[int]
    token_ids: list[int]
    logprobs: list[object] = field(default_factory=list)


@dataclass(slots=True)
class SequenceUpdate:
    """New tokens of one sequence. `position` is the first one's index in the output."""

    handle: Hashable
    sample_index: int
    position: int
    token_ids: list[int]
    logprobs: list[object]
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request, over all its sequences."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class RequestEnd:
    """A request is over: with its usage, or with the reason why it was ended early."""

    handle: Hashable
    usage: Usage | None = None
    error: Exception | None = None


@dataclass(slots=True)
class Outputs:
    """What one call has for the gateways: new tokens first, then ends."""

    updates: list[SequenceUpdate] = field(default_factory=list)
    ends: list[RequestEnd] = field(default_factory=list)
