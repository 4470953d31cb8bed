"""What goes into one step of an executor and what comes out of it, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field


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
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    logprobs: int | None = None
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A sequence that starts, or starts again after preemption: everything about it, once.

    Attributes:
        token_ids: prompt and output so far.
        prompt_length: how many of them are the prompt.
        num_computed: how many of them already have keys and values in the blocks of `block_table`.
        block_table: block id of each logical block.
        sample_index: which of its request's n sequences this is.
    """

    sequence_id: int
    token_ids: list[int]
    prompt_length: int
    num_computed: int
    block_table: list[int]
    sampling: SamplingParams
    sample_index: int = 0


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One step, applied in the order of the attributes.

    Attributes:
        forget: sequences whose state is dropped.
        new_sequences: replace what is known of those ids.
        row_sequence_ids, row_num_tokens: the rows. Row i computes the next `row_num_tokens[i]` tokens of its sequence;
            it samples when that reaches the last token the sequence has.
        table_edits: (row, logical index, block id); appends at the table's length, replaces below it.
        block_copies: (source, destination), all of them before any row writes.
        forks: parent sequence id -> ids of children, which copy the parent (table included) when it samples in this
            step; child i (from 0) gets sample index i + 1 and a token of its own.

    In each layer all rows write their keys and values before any row attends, so a row may read a block that another
    row fills in the same step.
    """

    epoch: int
    step: int
    forget: list[int] = field(default_factory=list)
    new_sequences: list[NewSequence] = field(default_factory=list)
    table_edits: list[tuple[int, int, int]] = field(default_factory=list)
    block_copies: list[tuple[int, int]] = field(default_factory=list)
    row_sequence_ids: list[int] = field(default_factory=list)
    row_num_tokens: list[int] = field(default_factory=list)
    forks: dict[int, list[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural log probabilities at one position, before temperature and truncation."""

    logprob: float
    top_token_ids: list[int]
    top_logprobs: list[float]


@dataclass(frozen=True, slots=True)
class StepResult:
    """Sampled tokens in row order, each child right after its parent.

    Attributes:
        logprobs: aligned with `token_ids` (None where a sequence did not ask), or empty when no sequence asked.
    """

    epoch: int
    step: int
    sequence_ids: list[int]
    token_ids: list[int]
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)


class BatchRefused(Exception):
    """The batch is from an older epoch, leaves a gap in steps, or names what does not exist.

    Nothing of it was applied.
    """
