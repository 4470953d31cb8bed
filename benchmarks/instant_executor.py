"""An executor that computes nothing and answers at once, to measure what the KV manager does with memory."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, replace

from benchmarks.candidate_model import CandidateModel
from kvmanager.step import StepBatch, StepResult

VOCAB_SIZE = 1 << 15


@dataclass(slots=True)
class _Sequence:
    """Token counts of a sequence. `search`: the same for all beams of one search."""

    num_tokens: int
    num_computed: int
    num_candidates: int
    search: object


class InstantExecutor:
    """Takes step batches in order; `run` executes the oldest one. Sampled tokens are random.

    It knows the beams of one search by `NewSequence.sampling`, which has to be different for each request.
    """

    def __init__(self, seed: int, candidates: CandidateModel) -> None:
        self._rng = random.Random(f"executor {seed}")
        self._candidates = candidates
        self._sequences: dict[int, _Sequence] = {}
        self._pending: deque[StepBatch] = deque()

    def send(self, batch: StepBatch) -> None:
        self._pending.append(batch)

    def run(self) -> StepResult:
        batch = self._pending.popleft()
        self._update_sequences(batch)
        result = StepResult(batch.step, [], [])
        self._candidates.next_step()
        for sequence_id, num_tokens in zip(batch.row_sequence_ids, batch.row_num_tokens, strict=True):
            sequence = self._sequences[sequence_id]
            sequence.num_computed += num_tokens
            if sequence.num_computed < sequence.num_tokens:
                continue
            if sequence.num_candidates:
                result.candidates[sequence_id] = self._candidates.draw(sequence.search, sequence.num_candidates)
                continue
            children = batch.forks.get(sequence_id, ())
            self._sequences.update({child_id: replace(sequence) for child_id in children})
            for member_id in (sequence_id, *children):
                self._sequences[member_id].num_tokens += 1
                result.sequence_ids.append(member_id)
                result.token_ids.append(self._rng.randrange(VOCAB_SIZE))
        return result

    def _update_sequences(self, batch: StepBatch) -> None:
        for sequence_id in batch.forget:
            del self._sequences[sequence_id]
        for parent_id, child_id in batch.branches:
            self._sequences[child_id] = replace(self._sequences[parent_id])
        for sequence_id, _ in batch.chosen_tokens:
            self._sequences[sequence_id].num_tokens += 1
        for new in batch.new_sequences:
            self._sequences[new.sequence_id] = _Sequence(
                len(new.token_ids), new.num_computed, new.num_candidates, new.sampling
            )
