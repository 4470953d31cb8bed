"""What the executor keeps of each sequence between steps."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from executor.guides.guide import Guide
from executor.step import NewSequence, SamplingParams


@dataclass(slots=True, eq=False)
class PendingToken:
    """A token that was sampled and is not on the host yet.

    Attributes:
        tokens: those sampled with it, int64, on the device.
        index: of the token among them.
        position: of the token in its sequence.
        holders: the sequence, and the copies that were made of it since.
    """

    tokens: torch.Tensor
    index: int
    position: int
    holders: list[SequenceState]

    def arrive(self, token: int) -> None:
        """Puts the token where its place was kept."""
        for sequence in self.holders:
            sequence.token_ids[self.position] = token
            if sequence.pending is self:
                sequence.pending = None


@dataclass(slots=True)
class SequenceState:
    """One sequence.

    Attributes:
        token_ids: prompt and output so far, the token sampled or chosen last included; where that is pending, 0.
        num_computed: how many of them have keys and values in the blocks.
        block_table: block id of each logical block.
        num_candidates: above 0, its rows report so many most likely next tokens and sample nothing.
        ranked: the log probability of each token it samples is reported.
        packed_sampling: what a sampler has made of the three before, once for the sequence and its copies.
        pending: the last token, while only the device knows it.
        guide: which tokens may come next; None where all may.
    """

    sequence_id: int
    token_ids: array[int]
    prompt_length: int
    num_computed: int
    block_table: array[int]
    sample_index: int
    sampling: SamplingParams
    num_candidates: int = 0
    ranked: bool = False
    packed_sampling: Any = field(default=None, repr=False, compare=False)
    pending: PendingToken | None = field(default=None, repr=False, compare=False)
    guide: Guide | None = field(default=None, repr=False, compare=False)

    @classmethod
    def start(cls, new: NewSequence) -> SequenceState:
        return cls(
            sequence_id=new.sequence_id,
            token_ids=_int64(new.token_ids),
            prompt_length=new.prompt_length,
            num_computed=new.num_computed,
            block_table=_int64(new.block_table),
            sampling=new.sampling,
            sample_index=new.sample_index,
            num_candidates=new.num_candidates,
            ranked=new.ranked,
        )

    def branch(self, child_id: int) -> SequenceState:
        """A copy of the sequence, table included."""
        return self.fork(child_id, self.sample_index)

    def fork(self, child_id: int, sample_index: int) -> SequenceState:
        """A copy of the sequence, table included, with a random stream of its own."""
        child = SequenceState(
            sequence_id=child_id,
            token_ids=self.token_ids[:],
            prompt_length=self.prompt_length,
            num_computed=self.num_computed,
            block_table=self.block_table[:],
            sampling=self.sampling,
            sample_index=sample_index,
            num_candidates=self.num_candidates,
            ranked=self.ranked,
            # What was packed names the memory where the sequence's own guide writes.
            packed_sampling=None if self.guide else self.packed_sampling,
            pending=self.pending,
            guide=self.guide.fork() if self.guide else None,
        )
        if self.pending is not None:
            self.pending.holders.append(child)
        return child

    def keep_place(self, tokens: torch.Tensor, index: int) -> PendingToken:
        """Makes entry `index` of `tokens`, on the device, the next token."""
        self.pending = PendingToken(tokens, index, len(self.token_ids), [self])
        self.token_ids.append(0)
        return self.pending

    def edit_table(self, index: int, block: int) -> None:
        """Appends where `index` is the table's length, replaces below it."""
        if index == len(self.block_table):
            self.block_table.append(block)
        else:
            self.block_table[index] = block

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.prompt_length


def _int64(values: Sequence[int]) -> array[int]:
    return array("q", values)
