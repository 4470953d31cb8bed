"""Refuses a batch that names what does not exist, before anything of it is applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from executor.sequences import SequenceState
from executor.step import BatchRefused, NewSequence, StepBatch


@dataclass(frozen=True, slots=True)
class Limits:
    """What a batch may name.

    Attributes:
        max_positions: tokens of a sequence that can be computed.
    """

    num_blocks: int
    block_size: int
    vocab_size: int
    max_positions: int


@dataclass(slots=True)
class _Shape:
    """What a sequence will look like when the rows run."""

    num_tokens: int
    num_computed: int
    table_length: int


def check_batch(batch: StepBatch, sequences: Mapping[int, SequenceState], limits: Limits) -> None:
    """Follows the batch without applying it.

    Args:
        sequences: what is known before the batch; empty when it starts an epoch.

    Raises:
        BatchRefused: names the field and what is wrong with it.
    """
    _Check(batch, sequences, limits).run()


class _Check:
    def __init__(self, batch: StepBatch, sequences: Mapping[int, SequenceState], limits: Limits) -> None:
        self._batch = batch
        self._sequences = sequences
        self._limits = limits
        self._forgotten = set(batch.forget)
        self._new = {new.sequence_id: new for new in batch.new_sequences}
        self._shapes: dict[int, _Shape] = {}

    def run(self) -> None:
        self._check_forget()
        self._check_new_sequences()
        self._check_rows()
        self._check_table_edits()
        self._check_block_copies()
        sampling = self._check_counts()
        self._check_forks(sampling)

    def _check_forget(self) -> None:
        if len(self._forgotten) != len(self._batch.forget):
            raise BatchRefused("forget: names a sequence twice")
        for sequence_id in self._batch.forget:
            if sequence_id not in self._sequences:
                raise BatchRefused(f"forget: unknown sequence {sequence_id}")

    def _check_new_sequences(self) -> None:
        if len(self._new) != len(self._batch.new_sequences):
            raise BatchRefused("new_sequences: names a sequence twice")
        for new in self._batch.new_sequences:
            self._check_new(new, f"new_sequences: sequence {new.sequence_id}:")

    def _check_new(self, new: NewSequence, where: str) -> None:
        if not 1 <= new.prompt_length <= len(new.token_ids):
            raise BatchRefused(f"{where} prompt_length {new.prompt_length} of {len(new.token_ids)} tokens")
        if not 0 <= new.num_computed < len(new.token_ids):
            raise BatchRefused(f"{where} num_computed {new.num_computed} of {len(new.token_ids)} tokens")
        if min(new.token_ids) < 0 or max(new.token_ids) >= self._limits.vocab_size:
            raise BatchRefused(f"{where} token_ids are not all below the vocabulary size {self._limits.vocab_size}")
        if new.sample_index < 0:
            raise BatchRefused(f"{where} sample_index {new.sample_index} is negative")
        for block in new.block_table:
            self._check_block(block, where)

    def _check_rows(self) -> None:
        rows = self._batch.row_sequence_ids
        if len(rows) != len(self._batch.row_num_tokens):
            raise BatchRefused(f"row_num_tokens: {len(self._batch.row_num_tokens)} entries for {len(rows)} rows")
        for sequence_id in rows:
            if sequence_id in self._shapes:
                raise BatchRefused(f"row_sequence_ids: sequence {sequence_id} has two rows")
            self._shapes[sequence_id] = self._shape_of(sequence_id)

    def _shape_of(self, sequence_id: int) -> _Shape:
        new = self._new.get(sequence_id)
        if new is not None:
            return _Shape(len(new.token_ids), new.num_computed, len(new.block_table))
        known = self._sequences.get(sequence_id)
        if known is None or sequence_id in self._forgotten:
            raise BatchRefused(f"row_sequence_ids: unknown sequence {sequence_id}")
        return _Shape(len(known.token_ids), known.num_computed, len(known.block_table))

    def _check_table_edits(self) -> None:
        rows = self._batch.row_sequence_ids
        for row, index, block in self._batch.table_edits:
            if not 0 <= row < len(rows):
                raise BatchRefused(f"table_edits: row {row} of {len(rows)}")
            shape = self._shapes[rows[row]]
            if not 0 <= index <= shape.table_length:
                raise BatchRefused(f"table_edits: row {row}: index {index} of a table of {shape.table_length} blocks")
            self._check_block(block, f"table_edits: row {row}:")
            shape.table_length = max(shape.table_length, index + 1)

    def _check_block_copies(self) -> None:
        for pair in self._batch.block_copies:
            for block in pair:
                self._check_block(block, "block_copies:")

    def _check_counts(self) -> set[int]:
        """Checks each row's number of tokens; returns the sequences that sample."""
        sampling = set()
        for (sequence_id, shape), count in zip(self._shapes.items(), self._batch.row_num_tokens, strict=True):
            where, end = f"row_num_tokens: sequence {sequence_id}:", shape.num_computed + count
            if count < 1 or end > shape.num_tokens:
                left = shape.num_tokens - shape.num_computed
                raise BatchRefused(f"{where} {count} tokens where {left} are left to compute")
            if end > self._limits.max_positions:
                raise BatchRefused(f"{where} {end} tokens exceed the model's {self._limits.max_positions} positions")
            if end > shape.table_length * self._limits.block_size:
                blocks = f"{shape.table_length} blocks of {self._limits.block_size} tokens"
                raise BatchRefused(f"{where} {end} tokens exceed a table of {blocks}")
            if end == shape.num_tokens:
                sampling.add(sequence_id)
        return sampling

    def _check_forks(self, sampling: set[int]) -> None:
        children: set[int] = set()
        for parent, child_ids in self._batch.forks.items():
            if parent not in sampling:
                raise BatchRefused(f"forks: sequence {parent} does not sample in this step")
            for child in child_ids:
                known = child in self._sequences and child not in self._forgotten
                if known or child in self._new or child in children:
                    raise BatchRefused(f"forks: child {child} of sequence {parent} already exists")
                children.add(child)

    def _check_block(self, block: int, where: str) -> None:
        if not 0 <= block < self._limits.num_blocks:
            raise BatchRefused(f"{where} block {block} of {self._limits.num_blocks}")
