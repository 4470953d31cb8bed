"""The executor: applies step batches in order and returns the tokens they sample."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from executor.batch_check import Limits, check_batch
from executor.model_runner import ModelRunner, Row
from executor.sampler import Draw, sample
from executor.sequences import SequenceState
from executor.step import BatchRefused, StepBatch, StepResult


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """What an executor runs and how much memory it has.

    Attributes:
        max_model_len: longest sequence it takes, in tokens; all of one fits into its blocks.
        incarnation: new for each executor that is made: memory described under another incarnation is gone.
    """

    model_name: str
    max_model_len: int
    vocab_size: int
    block_size: int
    num_blocks: int
    bytes_per_block: int
    device: str
    dtype: str
    attention_backend: str
    eos_token_ids: tuple[int, ...]
    incarnation: str


class Executor:
    """Keeps the sequences it is told of and runs the steps it is given. Decides nothing; not thread-safe."""

    def __init__(self, runner: ModelRunner, info: ExecutorInfo) -> None:
        self.info = info
        self._runner = runner
        self._limits = Limits(
            num_blocks=info.num_blocks,
            block_size=info.block_size,
            vocab_size=info.vocab_size,
            max_positions=info.max_model_len,
        )
        self._epoch = 0
        self._last_step = 0
        self._failed = False
        self._sequences: dict[int, SequenceState] = {}

    @property
    def epoch(self) -> int:
        """Highest epoch seen; 0 before the first."""
        return self._epoch

    @torch.inference_mode()
    def step(self, batch: StepBatch) -> StepResult:
        """Applies a batch as `executor.step.StepBatch` documents.

        A higher epoch drops every sequence and starts with step 1. If a step fails inside (out of memory, say), only a
        higher epoch goes on.

        Raises:
            BatchRefused: nothing of the batch was applied.
        """
        starts_epoch = self._check_turn(batch)
        check_batch(batch, {} if starts_epoch else self._sequences, self._limits)
        if starts_epoch:
            self._sequences.clear()
        self._epoch, self._last_step, self._failed = batch.epoch, batch.step, True
        result = self._run(batch)
        self._failed = False
        return result

    def _check_turn(self, batch: StepBatch) -> bool:
        """Whether the batch starts a new epoch."""
        if batch.epoch < self._epoch:
            raise BatchRefused(f"epoch {batch.epoch} is older than {self._epoch}")
        starts_epoch = batch.epoch > self._epoch
        if not starts_epoch and self._failed:
            raise BatchRefused(f"step {self._last_step} of epoch {self._epoch} failed; a higher epoch must start")
        expected = 1 if starts_epoch else self._last_step + 1
        if batch.step != expected:
            raise BatchRefused(f"step {batch.step} of epoch {batch.epoch} where step {expected} is due")
        return starts_epoch

    def _run(self, batch: StepBatch) -> StepResult:
        rows = self._apply(batch)
        if not rows:
            return StepResult(batch.epoch, batch.step, [], [])
        logits = self._runner.run(rows)
        sampling = [row.sequence for row in rows if row.samples]
        for row in rows:
            row.sequence.num_computed += row.num_tokens
        return self._sample(batch, logits, sampling)

    def _apply(self, batch: StepBatch) -> list[Row]:
        for sequence_id in batch.forget:
            del self._sequences[sequence_id]
        for new in batch.new_sequences:
            self._sequences[new.sequence_id] = SequenceState.start(new)
        rows = [
            Row(self._sequences[sequence_id], count)
            for sequence_id, count in zip(batch.row_sequence_ids, batch.row_num_tokens, strict=True)
        ]
        for row, index, block in batch.table_edits:
            rows[row].sequence.edit_table(index, block)
        self._runner.arena.copy_blocks(batch.block_copies)
        return rows

    def _sample(self, batch: StepBatch, logits: torch.Tensor, sampling: list[SequenceState]) -> StepResult:
        """Gives each sampling sequence its token, and each of its children another from the same logits."""
        drawn: list[SequenceState] = []
        draws: list[Draw] = []
        for row, parent in enumerate(sampling):
            family = [parent]
            for i, child_id in enumerate(batch.forks.get(parent.sequence_id, ())):
                child = parent.fork(child_id, sample_index=i + 1)
                self._sequences[child_id] = child
                family.append(child)
            drawn += family
            draws += [Draw(row, member.sampling, member.sample_index, member.num_output_tokens) for member in family]
        tokens, logprobs = sample(logits, draws) if draws else ([], [])
        for sequence, token in zip(drawn, tokens, strict=True):
            sequence.token_ids.append(token)
        return StepResult(batch.epoch, batch.step, [sequence.sequence_id for sequence in drawn], tokens, logprobs)
