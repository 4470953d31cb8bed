"""What chooses the tokens of a step: with torch, or, where the kernels were built, with `executor.native.sampling`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from executor.sampling.candidates import CandidateLists, most_likely
from executor.sampling.draw import Draw
from executor.sampling.sampler import Drawn, sample
from executor.sequences import SequenceState


class Sampler(Protocol):
    """Tokens, or candidates for them, from logits.

    Neither method waits for a GPU: the work is put in its line, with copies of the outcome to the host behind it. What
    they return is read once the GPU has come that far.
    """

    def sample(self, logits: torch.Tensor, rows: Sequence[int], sequences: Sequence[SequenceState]) -> Drawn:
        """Chooses the next token of each sequence as `executor.sampling.sampler.sample` defines.

        Args:
            logits: [rows, vocab] in float32.
            rows: which row is whose; several sequences may share one.
        """

    def candidates(
        self, logits: torch.Tensor, rows: Sequence[int], sequences: Sequence[SequenceState]
    ) -> CandidateLists:
        """The most likely next tokens of each sequence as `executor.sampling.candidates.most_likely` defines."""


class TorchSampler:
    """Runs on any device."""

    def sample(self, logits: torch.Tensor, rows: Sequence[int], sequences: Sequence[SequenceState]) -> Drawn:
        return sample(logits, _draws(rows, sequences))

    def candidates(
        self, logits: torch.Tensor, rows: Sequence[int], sequences: Sequence[SequenceState]
    ) -> CandidateLists:
        counts = [sequence.num_candidates for sequence in sequences]
        return most_likely(logits, _draws(rows, sequences), counts)


def _draws(rows: Sequence[int], sequences: Sequence[SequenceState]) -> list[Draw]:
    return [
        Draw(
            row,
            sequence.sampling,
            sequence.sample_index,
            sequence.num_output_tokens,
            sequence.token_ids,
            sequence.ranked,
            sequence.guide.allowed if sequence.guide else None,
        )
        for row, sequence in zip(rows, sequences, strict=True)
    ]
