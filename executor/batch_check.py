"""Refuses a batch that names what does not exist, before anything of it is applied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from executor.sequences import SequenceState
from executor.step import BatchRefused, BlockPlace, NewSequence, StepBatch, Tier


@dataclass(frozen=True, slots=True)
class Limits:
    """What a batch may name.

    Attributes:
        max_positions: tokens of a sequence that can be computed.
    """

    num_blocks: int
    num_host_blocks: int
    block_size: int
    vocab_size: int
    max_positions: int


@dataclass(slots=True)
class _Shape:
    """What a sequence looks like at some point of the batch."""

    num_tokens: int
    num_computed: int
    table_length: int
    num_candidates: int

    @classmethod
    def of(cls, known: SequenceState) -> _Shape:
        return cls(len(known.token_ids), known.num_computed, len(known.block_table), known.num_candidates)

    def copy(self) -> _Shape:
        return _Shape(self.num_tokens, self.num_computed, self.table_length, self.num_candidates)


def check_batch(batch: StepBatch, sequences: Mapping[int, SequenceState], limits: Limits) -> None:
    """Follows the batch without applying it.

    Args:
        sequences: what is known before the batch; empty when it starts an epoch.

    Raises:
        BatchRefused: names the field and what is wrong with it.
    """
    _Check(batch, sequences, limits).run()


class _Check:
    """Shapes are made only of sequences that the batch changes before its rows: most decode, and are only looked at."""

    def __init__(self, batch: StepBatch, sequences: Mapping[int, SequenceState], limits: Limits) -> None:
        self._batch = batch
        self._sequences = sequences
        self._limits = limits
        # Not there any more, and there again with another shape than before.
        self._gone: set[int] = set()
        self._changed: dict[int, _Shape] = {}

    def run(self) -> None:
        self._check_places("removed_blocks", self._batch.removed_blocks)
        self._check_places("stored_blocks", [(each.tier, each.block_id) for each in self._batch.stored_blocks])
        self._check_forget()
        self._check_branches()
        self._check_chosen_tokens()
        self._check_new_sequences()
        self._check_table_edits()
        self._check_swaps()
        self._check_block_copies()
        self._check_rows()
        self._check_forks()

    def _check_places(self, field: str, places: Sequence[BlockPlace]) -> None:
        for tier, block in places:
            on_host = tier is Tier.HOST
            num_blocks = self._limits.num_host_blocks if on_host else self._limits.num_blocks
            _check_blocks((block,), num_blocks, f"{field}: {tier.name.lower()}")

    def _check_forget(self) -> None:
        for sequence_id in self._batch.forget:
            if sequence_id in self._gone:
                raise BatchRefused(f"forget: names sequence {sequence_id} twice")
            if sequence_id not in self._sequences:
                raise BatchRefused(f"forget: unknown sequence {sequence_id}")
            self._gone.add(sequence_id)

    def _check_branches(self) -> None:
        for parent, child in self._batch.branches:
            shape = self._shape(parent, "branches")
            if self._exists(child):
                raise BatchRefused(f"branches: child {child} of sequence {parent} already exists")
            self._changed[child] = shape.copy()

    def _check_chosen_tokens(self) -> None:
        for sequence_id, token in self._batch.chosen_tokens:
            where = f"chosen_tokens: sequence {sequence_id}"
            shape = self._shape(sequence_id, "chosen_tokens")
            if not shape.num_candidates:
                raise BatchRefused(f"{where} samples its tokens itself")
            if shape.num_computed < shape.num_tokens:
                left = shape.num_tokens - shape.num_computed
                raise BatchRefused(f"{where} has {left} tokens left to compute before its next one")
            if not 0 <= token < self._limits.vocab_size:
                raise BatchRefused(f"{where}: token {token} of a vocabulary of {self._limits.vocab_size}")
            shape.num_tokens += 1

    def _check_new_sequences(self) -> None:
        new_ids = {new.sequence_id for new in self._batch.new_sequences}
        if len(new_ids) != len(self._batch.new_sequences):
            raise BatchRefused("new_sequences: names a sequence twice")
        for new in self._batch.new_sequences:
            self._check_new(new, f"new_sequences: sequence {new.sequence_id}:")
            self._changed[new.sequence_id] = _Shape(
                len(new.token_ids), new.num_computed, len(new.block_table), new.num_candidates
            )

    def _check_new(self, new: NewSequence, where: str) -> None:
        if not 1 <= new.prompt_length <= len(new.token_ids):
            raise BatchRefused(f"{where} prompt_length {new.prompt_length} of {len(new.token_ids)} tokens")
        if not 0 <= new.num_computed < len(new.token_ids):
            raise BatchRefused(f"{where} num_computed {new.num_computed} of {len(new.token_ids)} tokens")
        if min(new.token_ids) < 0 or max(new.token_ids) >= self._limits.vocab_size:
            raise BatchRefused(f"{where} token_ids are not all below the vocabulary size {self._limits.vocab_size}")
        for name, value in (("sample_index", new.sample_index), ("num_candidates", new.num_candidates)):
            if value < 0:
                raise BatchRefused(f"{where} {name} {value} is negative")
        _check_blocks(new.block_table, self._limits.num_blocks, f"{where} block_table:")

    def _check_table_edits(self) -> None:
        for sequence_id, index, block in self._batch.table_edits:
            shape = self._shape(sequence_id, "table_edits")
            where = f"table_edits: sequence {sequence_id}:"
            if not 0 <= index <= shape.table_length:
                raise BatchRefused(f"{where} index {index} of a table of {shape.table_length} blocks")
            if not 0 <= block < self._limits.num_blocks:
                raise BatchRefused(f"{where} block {block} of {self._limits.num_blocks}")
            if index == shape.table_length:
                shape.table_length += 1

    def _check_swaps(self) -> None:
        device, host = self._limits.num_blocks, self._limits.num_host_blocks
        for where, pairs, num_sources, num_destinations in (
            ("swaps_out:", self._batch.swaps_out, device, host),
            ("swaps_in:", self._batch.swaps_in, host, device),
        ):
            if pairs:
                _check_blocks((source for source, _ in pairs), num_sources, f"{where} source")
                _check_blocks((destination for _, destination in pairs), num_destinations, f"{where} destination")
                if len({destination for _, destination in pairs}) < len(pairs):
                    raise BatchRefused(f"{where} two blocks go to one destination")

    def _check_block_copies(self) -> None:
        for pair in self._batch.block_copies:
            _check_blocks(pair, self._limits.num_blocks, "block_copies:")

    def _check_rows(self) -> None:
        rows, counts = self._batch.row_sequence_ids, self._batch.row_num_tokens
        if len(rows) != len(counts):
            raise BatchRefused(f"row_num_tokens: {len(counts)} entries for {len(rows)} rows")
        if len(set(rows)) < len(rows):
            twice = next(sequence_id for i, sequence_id in enumerate(rows) if sequence_id in rows[:i])
            raise BatchRefused(f"row_sequence_ids: sequence {twice} has two rows")
        block_size, max_positions = self._limits.block_size, self._limits.max_positions
        changed, sequences, gone = self._changed, self._sequences, self._gone
        for sequence_id, count in zip(rows, counts, strict=True):
            shape = changed.get(sequence_id)
            if shape is not None:
                num_tokens, table_length = shape.num_tokens, shape.table_length
                end = shape.num_computed + count
            else:
                known = sequences.get(sequence_id)
                if known is None or sequence_id in gone:
                    raise BatchRefused(f"row_sequence_ids: unknown sequence {sequence_id}")
                num_tokens, table_length = len(known.token_ids), len(known.block_table)
                end = known.num_computed + count
            if count < 1 or end > num_tokens or end > max_positions or end > table_length * block_size:
                self._refuse_count(sequence_id, count)

    def _refuse_count(self, sequence_id: int, count: int) -> None:
        shape, limits = self._shape(sequence_id, "row_sequence_ids"), self._limits
        where, end = f"row_num_tokens: sequence {sequence_id}:", shape.num_computed + count
        if count < 1 or end > shape.num_tokens:
            left = shape.num_tokens - shape.num_computed
            raise BatchRefused(f"{where} {count} tokens where {left} are left to compute")
        if end > limits.max_positions:
            raise BatchRefused(f"{where} {end} tokens exceed the model's {limits.max_positions} positions")
        blocks = f"{shape.table_length} blocks of {limits.block_size} tokens"
        raise BatchRefused(f"{where} {end} tokens exceed a table of {blocks}")

    def _check_forks(self) -> None:
        if not self._batch.forks:
            return
        counts = dict(zip(self._batch.row_sequence_ids, self._batch.row_num_tokens, strict=True))
        children: set[int] = set()
        for parent, child_ids in self._batch.forks.items():
            if parent not in counts or not self._samples(self._shape(parent, "forks"), counts[parent]):
                raise BatchRefused(f"forks: sequence {parent} does not sample in this step")
            for child in child_ids:
                if self._exists(child) or child in children:
                    raise BatchRefused(f"forks: child {child} of sequence {parent} already exists")
                children.add(child)

    @staticmethod
    def _samples(shape: _Shape, count: int) -> bool:
        return shape.num_computed + count == shape.num_tokens and not shape.num_candidates

    def _exists(self, sequence_id: int) -> bool:
        return sequence_id in self._changed or (sequence_id in self._sequences and sequence_id not in self._gone)

    def _shape(self, sequence_id: int, field: str) -> _Shape:
        """The sequence's shape at this point, to be changed as the batch changes it."""
        shape = self._changed.get(sequence_id)
        if shape is None:
            if not self._exists(sequence_id):
                raise BatchRefused(f"{field}: unknown sequence {sequence_id}")
            shape = self._changed[sequence_id] = _Shape.of(self._sequences[sequence_id])
        return shape


def _check_blocks(blocks: Iterable[int], num_blocks: int, where: str) -> None:
    for block in blocks:
        if not 0 <= block < num_blocks:
            raise BatchRefused(f"{where} block {block} of {num_blocks}")
