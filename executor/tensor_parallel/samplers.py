"""One rank samples, the others take its tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.sampling.candidates import CandidateLists
from executor.sampling.sampler import Drawn, Sampled
from executor.sampling.samplers import Sampler
from executor.sequences import SequenceState
from executor.tensor_parallel.ranks import Ranks
from executor.transfers import to_host


def rank_sampler(sampler: Sampler, ranks: Ranks) -> Sampler:
    """What a rank has in the place of the sampler that one alone would have."""
    if ranks.size == 1:
        return sampler
    return LeadingSampler(sampler, ranks) if ranks.is_first else FollowingSampler(ranks)


class LeadingSampler:
    """The first rank's: the others are told what it samples."""

    def __init__(self, sampler: Sampler, ranks: Ranks) -> None:
        self._sampler = sampler
        self._ranks = ranks

    def sample(self, logits: torch.Tensor, rows: Sequence[int], sequences: Sequence[SequenceState]) -> Drawn:
        drawn = self._sampler.sample(logits, rows, sequences)
        tokens = drawn.tokens
        if tokens is None:
            tokens = torch.tensor(drawn.finish().token_ids, device=logits.device)
        self._ranks.first_tokens(tokens)
        return drawn

    def candidates(
        self, logits: torch.Tensor, rows: Sequence[int], sequences: Sequence[SequenceState]
    ) -> CandidateLists:
        return self._sampler.candidates(logits, rows, sequences)


class FollowingSampler:
    """Another rank's: its logits mean nothing, and nobody asks it for anything but the next input."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def sample(self, logits: torch.Tensor, rows: Sequence[int], sequences: Sequence[SequenceState]) -> Drawn:
        tokens = self._ranks.first_tokens(torch.empty(len(rows), dtype=torch.int64, device=logits.device))
        on_host = to_host(tokens)
        return Drawn(None if tokens.is_cpu else tokens, lambda: Sampled(on_host.tolist(), [], []))

    def candidates(
        self, logits: torch.Tensor, rows: Sequence[int], sequences: Sequence[SequenceState]
    ) -> CandidateLists:
        # Which of them are chosen comes with a later step.
        return lambda: [([], []) for _ in rows]
