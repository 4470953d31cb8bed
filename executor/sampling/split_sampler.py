"""Samples in parts where there is no memory for all sequences at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from executor.memory.out_of_memory import MemoryWarnings, is_out_of_memory, release_cached
from executor.sampling.candidates import CandidateLists
from executor.sampling.sampler import Drawn, Sampled
from executor.sampling.samplers import Sampler
from executor.sequences import SequenceState

T = TypeVar("T")
_Sample = Callable[[torch.Tensor, Sequence[int], Sequence[SequenceState]], T]


class SplitSampler:
    """A sampler that is given half of the sequences, and half of those again, where memory runs out.

    A sequence's token depends on nothing but its own row of logits and its own state, so it is the same either way.

    Args:
        sampler: chooses the tokens of each part.
        warnings: told of each time.
    """

    def __init__(self, sampler: Sampler, warnings: MemoryWarnings) -> None:
        self._sampler = sampler
        self._warnings = warnings

    def sample(self, logits: torch.Tensor, rows: Sequence[int], sequences: Sequence[SequenceState]) -> Drawn:
        return self._in_parts(self._sampler.sample, _join_drawn, logits, rows, sequences)

    def candidates(
        self, logits: torch.Tensor, rows: Sequence[int], sequences: Sequence[SequenceState]
    ) -> CandidateLists:
        return self._in_parts(self._sampler.candidates, _join_candidates, logits, rows, sequences)

    def _in_parts(
        self,
        sample: _Sample[T],
        join: Callable[[T, T], T],
        logits: torch.Tensor,
        rows: Sequence[int],
        sequences: Sequence[SequenceState],
    ) -> T:
        """An error for want of memory is raised where even a single sequence has too little."""
        try:
            return sample(logits, rows, sequences)
        except Exception as error:
            if len(rows) == 1 or not is_out_of_memory(error):
                raise
            self._warnings.tell(f"the tokens of {len(rows)} sequences are sampled in halves", error)
        # Out here nothing holds what the failed attempt had made.
        release_cached(logits.device)
        middle = len(rows) // 2
        first, second = (
            self._in_parts(sample, join, *_narrowed(logits, rows[part]), sequences[part])
            for part in (slice(middle), slice(middle, None))
        )
        return join(first, second)


def _narrowed(logits: torch.Tensor, rows: Sequence[int]) -> tuple[torch.Tensor, list[int]]:
    """The logits from the first to the last of the rows, and where these lie in them."""
    first, last = min(rows), max(rows)
    return logits[first : last + 1], [row - first for row in rows]


def _join_drawn(first: Drawn, second: Drawn) -> Drawn:
    if first.tokens is None or second.tokens is None:
        one, other = first.finish(), second.finish()
        return Drawn(None, lambda: _join_sampled(one, other))
    tokens = torch.cat((first.tokens, second.tokens))
    return Drawn(tokens, lambda: _join_sampled(first.finish(), second.finish()))


def _join_sampled(first: Sampled, second: Sampled) -> Sampled:
    """Reports of a part in which no sequence wanted any are filled up where the other has some."""
    parts = (first, second)
    logprobs = [each for part in parts for each in part.logprobs or [None] * len(part.token_ids)]
    scores = [each for part in parts for each in part.scores or [0.0] * len(part.token_ids)]
    return Sampled(
        first.token_ids + second.token_ids,
        logprobs if any(part.logprobs for part in parts) else [],
        scores if any(part.scores for part in parts) else [],
    )


def _join_candidates(first: CandidateLists, second: CandidateLists) -> CandidateLists:
    return lambda: first() + second()
