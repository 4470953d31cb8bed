"""What the KV manager tells an executor in one step, what comes back, and what gateways hear of it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from kvmanager.kv_events import Tier
from kvmanager.request import FinishReason, PrefixMatchEnd, Sequence
from kvmanager.request_times import RequestTimes
from kvmanager.spec import Scope


@dataclass(frozen=True, slots=True)
class NewSequence:
    """Everything about a sequence that starts, or starts again after preemption.

    Attributes:
        num_candidates: above 0, its rows report so many most likely next tokens instead of sampling (beam search).
        ranked: the log probability of each token it samples is needed.
    """

    sequence_id: int
    token_ids: list[int]
    prompt_length: int
    num_computed: int
    block_table: list[int]
    sampling: object
    sample_index: int
    num_candidates: int = 0
    ranked: bool = False

    @classmethod
    def of(cls, sequence: Sequence) -> NewSequence:
        """As the sequence is now."""
        request = sequence.request
        return cls(
            sequence.sequence_id,
            sequence.token_ids.tolist(),
            sequence.prompt_length,
            sequence.num_computed,
            [block.block_id for block in sequence.table],
            request.spec.sampling,
            sequence.sample_index,
            request.beams.num_candidates if request.beams else 0,
            request.ranked,
        )


@dataclass(slots=True)  # not frozen: that would make each one three times as dear, and there is one for each block
class StoredBlock:
    """A full block in memory, and all that its keys and values depend on.

    Attributes:
        identity: SHA-256 of the block (`kvmanager.content.block_identity`); `parent` that of the one before.
        tokens: int32, packed.
        scope: the narrowest of its tokens' scopes.
    """

    tier: Tier
    block_id: int
    identity: bytes
    parent: bytes
    tokens: bytes
    scope: Scope


@dataclass(slots=True)
class StepBatch:
    """One step. The executor applies the attributes in this order.

    Attributes:
        removed_blocks: (tier, block id): what was stored there is not valid from this step on.
        forget: sequences that are over or preempted.
        branches: (parent, child): the child starts as a copy of the parent, table included.
        chosen_tokens: (sequence, token): the next token of a sequence that reports candidates.
        new_sequences: replace whatever is known of them.
        table_edits: (sequence, logical index, block id); an append where the index is the table's length.
        swaps_out: (device block, host block).
        swaps_in: (host block, device block).
        block_copies: (source, destination) within the device pool, before any row writes.
        row_sequence_ids, row_num_tokens: one row for each sequence that computes tokens; those that decode come first.
        num_decodes: so many do.
        forks: parent -> children that copy it when it samples in this step.
        stored_blocks: valid once this step is done.
    """

    step: int
    removed_blocks: list[tuple[Tier, int]] = field(default_factory=list)
    forget: list[int] = field(default_factory=list)
    branches: list[tuple[int, int]] = field(default_factory=list)
    chosen_tokens: list[tuple[int, int]] = field(default_factory=list)
    new_sequences: list[NewSequence] = field(default_factory=list)
    table_edits: list[tuple[int, int, int]] = field(default_factory=list)
    swaps_out: list[tuple[int, int]] = field(default_factory=list)
    swaps_in: list[tuple[int, int]] = field(default_factory=list)
    block_copies: list[tuple[int, int]] = field(default_factory=list)
    row_sequence_ids: list[int] = field(default_factory=list)
    row_num_tokens: list[int] = field(default_factory=list)
    num_decodes: int = 0
    forks: dict[int, list[int]] = field(default_factory=dict)
    stored_blocks: list[StoredBlock] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """There is nothing to do: what blocks hold can wait for a step that has."""
        return not (
            self.row_sequence_ids
            or self.forget
            or self.new_sequences
            or self.chosen_tokens
            or self.table_edits
            or self.swaps_out
            or self.swaps_in
            or self.block_copies
        )


@dataclass(frozen=True, slots=True)
class Speeds:
    """How fast an executor is, as it measured. 0: unknown."""

    prefill_tokens_per_s: float = 0.0
    swap_out_blocks_per_s: float = 0.0
    swap_in_blocks_per_s: float = 0.0
    copy_blocks_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step sampled.

    Attributes:
        logprobs: aligned with the tokens, or empty; passed on unread.
        scores: log probability of each token, aligned, where a sequence of the step is ranked; otherwise empty.
        candidates: of each sequence that reports them: the most likely next tokens and their log probabilities.
        speeds: when they have changed.
        failures: why sequences can't go on; their tokens count for nothing.
    """

    step: int
    sequence_ids: list[int]
    token_ids: list[int]
    logprobs: list[object] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    candidates: dict[int, tuple[list[int], list[float]]] = field(default_factory=dict)
    speeds: Speeds | None = None
    failures: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class SequenceUpdate:
    """New tokens of one sequence.

    Attributes:
        position: the first token's index in the output.
        score: with the last tokens of a ranked sequence.
    """

    handle: Hashable
    sample_index: int
    position: int
    token_ids: list[int]
    logprobs: list[object]
    finish_reason: FinishReason | None
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request, over all its sequences, and why no more of the prompt came from the cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    prefix_match_end: PrefixMatchEnd | None = None


@dataclass(frozen=True, slots=True)
class RequestEnd:
    """A request is over: with its usage, or with the reason why it was ended early.

    Attributes:
        times: where its time went.
    """

    handle: Hashable
    usage: Usage | None = None
    error: Exception | None = None
    times: RequestTimes | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """So much of a request's prompt has been computed."""

    handle: Hashable
    computed_tokens: int
    prompt_tokens: int


@dataclass(slots=True)
class Outputs:
    """What one call has for the gateways: progress and new tokens first, then ends.

    Attributes:
        tokens: sequences that got one more token, their last, and there is nothing else to say: the usual case, which
            a step has hundreds of. To be read before the next call.
        updates: everything else that sequences got.
    """

    tokens: list[Sequence] = field(default_factory=list)
    updates: list[SequenceUpdate] = field(default_factory=list)
    ends: list[RequestEnd] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
