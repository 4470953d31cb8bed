"""What goes into one step of an executor and what comes out of it, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Penalties:
    """What is added to and taken from the logits of single tokens.

    Attributes:
        presence: subtracted once from tokens that the output holds.
        frequency: subtracted from a token as often as the output holds it.
        repetition: above 0; positive logits of tokens in prompt or output are divided by it, negative ones multiplied.
        logit_bias: token id -> what is added to its logit.
    """

    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one sequence's tokens are chosen.

    Attributes:
        temperature: 0 is greedy.
        top_p: keep the smallest set of tokens whose probabilities add up to this; 1 keeps all.
        top_k: keep this many of the most likely tokens; 0 keeps all.
        min_p: keep tokens at least this many times as likely as the most likely one; 0 keeps all.
        seed: with the sample index and the position, decides every random choice.
        logprobs: report this many most likely tokens beside the chosen one; None reports nothing.
        min_tokens: `stop_token_ids` can't be chosen before this many output tokens.
        stop_token_ids: tokens that would end the sequence.
        penalties: None where there are none.
        guide: grammar of the whole output, in `llguidance`'s language; None where anything goes.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    logprobs: int | None = None
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    penalties: Penalties | None = None
    guide: str | None = None


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A sequence that starts, or starts again after preemption: everything about it, once.

    Attributes:
        token_ids: prompt and output so far.
        prompt_length: how many of them are the prompt.
        num_computed: how many of them already have keys and values in the blocks of `block_table`.
        block_table: block id of each logical block.
        sample_index: which of its request's n sequences this is.
        num_candidates: above 0, it samples nothing: its row reports so many most likely next tokens, and a later batch
            chooses one of them (beam search).
        ranked: the log probability of each token it samples is reported.
    """

    sequence_id: int
    token_ids: list[int]
    prompt_length: int
    num_computed: int
    block_table: list[int]
    sampling: SamplingParams
    sample_index: int = 0
    num_candidates: int = 0
    ranked: bool = False


class Tier(IntEnum):
    """Where a block is; the wire's numbers."""

    DEVICE = 1
    HOST = 2


BlockPlace: TypeAlias = tuple[Tier, int]
"""A tier and a block's id there."""


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A full block whose keys and values are there once the step is done.

    Attributes:
        record: what it holds, as it is told to whoever leads next; not read here.
    """

    tier: Tier
    block_id: int
    record: bytes


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One step, applied in the order of the attributes.

    Attributes:
        removed_blocks: what was stored there is not valid any more, whatever comes of the step.
        forget: sequences whose state is dropped.
        branches: (parent, child): the child starts as a copy of the parent, table included.
        chosen_tokens: (sequence, token): the next token of a sequence that reports candidates.
        new_sequences: replace what is known of those ids.
        table_edits: (sequence, logical index, block id); appends at the table's length, replaces below it.
        swaps_out: (device block, host block).
        swaps_in: (host block, device block).
        block_copies: (source, destination) within the device's blocks, one after another, before any row writes.
        row_sequence_ids, row_num_tokens: the rows. Row i computes the next `row_num_tokens[i]` tokens of its sequence;
            it samples when that reaches the last token the sequence has.
        forks: parent sequence id -> ids of children, which copy the parent (table included) when it samples in this
            step; child i (from 0) gets sample index i + 1 and a token of its own.
        stored_blocks: what blocks hold when the step is done. Blocks that the step writes, copies or moves to must not
            be stored from before.

    A row may read a block that an earlier row of the same step fills, never one that a later row fills: in each layer
    all rows write their keys and values before any row attends, but where memory is short the rows are computed in
    parts, one after another in their order.
    """

    epoch: int
    step: int
    removed_blocks: list[BlockPlace] = field(default_factory=list)
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
    forks: dict[int, list[int]] = field(default_factory=dict)
    stored_blocks: list[StoredBlock] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural log probabilities at one position, before penalties, guide, temperature and truncation."""

    logprob: float
    top_token_ids: list[int]
    top_logprobs: list[float]


@dataclass(frozen=True, slots=True)
class Candidates:
    """The most likely next tokens of a sequence, most likely first (lower ids first where equal), after penalties.

    Attributes:
        logprobs: aligned with the tokens, natural logarithms.
    """

    sequence_id: int
    token_ids: list[int]
    logprobs: list[float]


@dataclass(frozen=True, slots=True)
class Speeds:
    """How fast an executor is, as measured on itself. 0: unknown."""

    prefill_tokens_per_s: float = 0.0
    swap_out_blocks_per_s: float = 0.0
    swap_in_blocks_per_s: float = 0.0
    copy_blocks_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StepResult:
    """Sampled tokens in row order, each child right after its parent.

    Attributes:
        logprobs: aligned with `token_ids` (None where a sequence did not ask), or empty when no sequence asked.
        scores: log probability of each token before penalties, temperature and truncation, aligned with `token_ids`
            (0 where a sequence is not ranked), or empty when no sequence is.
        candidates: of the rows that report them, in row order.
        speeds: where they have changed noticeably since they were last reported.
        failures: (sequence, reason) of sequences that can't go on; the token that they have here is no token of theirs.
    """

    epoch: int
    step: int
    sequence_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    candidates: list[Candidates] = field(default_factory=list)
    speeds: Speeds | None = None
    failures: list[tuple[int, str]] = field(default_factory=list)


class BatchRefused(Exception):
    """The batch is from an older epoch, leaves a gap in steps, or names what does not exist.

    Nothing of it was applied.
    """
