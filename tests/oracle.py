"""An executor whose keys and values are token ids.

Its blocks hold the id that was written at each slot, and the next token is a hash of the whole context *as read through
the block table*. So a wrong block, a stale copy, a missed copy-on-write or a lost token changes the output, which
`expected_output` knows without any blocks. It is pipelined like a real executor, and refuses what a real one would.
"""

from __future__ import annotations

import hashlib
import random
from array import array
from collections import deque
from dataclasses import dataclass

from kvmanager.step import NewSequence, StepBatch, StepResult

VOCAB_SIZE = 50


def next_token(context: list[int], seed: object, sample_index: int) -> int:
    """The token after a context: decided by every token in it, the seed and the sample."""
    key = array("i", context).tobytes() + repr((seed, sample_index)).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=4).digest(), "little") % VOCAB_SIZE


def expected_output(
    prompt: list[int], seed: object, sample_index: int, max_tokens: int, stop: frozenset[int], min_tokens: int = 0
) -> list[int]:
    """What a sequence must produce."""
    output: list[int] = []
    while len(output) < max_tokens:
        token = next_token(prompt + output, seed, sample_index)
        output.append(token)
        if token in stop and len(output) > min_tokens:
            break
    return output


@dataclass
class OracleSequence:
    token_ids: list[int]
    table: list[int]
    num_computed: int
    seed: object
    sample_index: int


class Oracle:
    """Takes step batches in order; `run` executes the oldest one that is under way."""

    def __init__(self, num_blocks: int, block_size: int, rng: random.Random) -> None:
        self.block_size = block_size
        # Whatever memory held before: reading it must never matter.
        self.slots = [[-rng.randrange(1, 1000) for _ in range(block_size)] for _ in range(num_blocks)]
        self.sequences: dict[int, OracleSequence] = {}
        self.last_step = 0
        self.pending: deque[StepBatch] = deque()

    def send(self, batch: StepBatch) -> None:
        self.pending.append(batch)

    def run(self) -> StepResult:
        batch = self.pending.popleft()
        assert batch.step == self.last_step + 1, "a gap in steps"
        self.last_step = batch.step
        for sequence_id in batch.forget:
            del self.sequences[sequence_id]
        for new in batch.new_sequences:
            self._start(new)
        self._edit_tables(batch)
        copies = {destination: list(self.slots[source]) for source, destination in batch.block_copies}
        assert len(copies) == len(batch.block_copies), "two copies into one block"
        for destination, content in copies.items():
            self.slots[destination] = content
        rows = [self.sequences[sequence_id] for sequence_id in batch.row_sequence_ids]
        for sequence, num_tokens in zip(rows, batch.row_num_tokens, strict=True):
            self._write(sequence, num_tokens)
        return self._sample(batch, rows)

    def _start(self, new: NewSequence) -> None:
        assert new.sequence_id not in self.sequences, "a sequence starts twice"
        self.sequences[new.sequence_id] = OracleSequence(
            list(new.token_ids), list(new.block_table), new.num_computed, new.sampling, new.sample_index
        )

    def _edit_tables(self, batch: StepBatch) -> None:
        for row, index, block_id in batch.table_edits:
            table = self.sequences[batch.row_sequence_ids[row]].table
            assert index <= len(table), "an edit beyond the table's end"
            table[index : index + 1] = [block_id]

    def _write(self, sequence: OracleSequence, num_tokens: int) -> None:
        assert num_tokens > 0
        end = sequence.num_computed + num_tokens
        assert end <= len(sequence.token_ids), "a row wants tokens that do not exist"
        for position in range(sequence.num_computed, end):
            block = sequence.table[position // self.block_size]
            self.slots[block][position % self.block_size] = sequence.token_ids[position]
        sequence.num_computed = end

    def _read(self, sequence: OracleSequence) -> list[int]:
        return [
            self.slots[sequence.table[position // self.block_size]][position % self.block_size]
            for position in range(sequence.num_computed)
        ]

    def _sample(self, batch: StepBatch, rows: list[OracleSequence]) -> StepResult:
        sequence_ids: list[int] = []
        token_ids: list[int] = []
        for sequence_id, sequence in zip(batch.row_sequence_ids, rows, strict=True):
            if sequence.num_computed < len(sequence.token_ids):
                continue
            context = self._read(sequence)
            group = {sequence_id: sequence}
            for index, child_id in enumerate(batch.forks.get(sequence_id, ()), start=1):
                child = OracleSequence(
                    list(sequence.token_ids), list(sequence.table), sequence.num_computed, sequence.seed, index
                )
                self.sequences[child_id] = group[child_id] = child
            for member_id, member in group.items():
                token = next_token(context, member.seed, member.sample_index)
                member.token_ids.append(token)
                sequence_ids.append(member_id)
                token_ids.append(token)
        return StepResult(batch.step, sequence_ids, token_ids)
