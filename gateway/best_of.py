"""Chooses the best of several sampled sequences.

The backend does this itself, except where stop strings say where a sequence ends, which are found here, and where the
client wants log probabilities, which the backend sends on and does not keep.
"""

from __future__ import annotations

from dataclasses import replace

from gateway.output import Chunk


class BestOf:
    """Keeps sequences back until all are complete, then gives out those with the highest mean log probability.

    Args:
        n: How many sequences there are.
        kept: How many are given out.
        shows_logprobs: Whether their log probabilities are given out too.
    """

    def __init__(self, n: int, kept: int, *, shows_logprobs: bool) -> None:
        self._chunks: list[list[Chunk]] = [[] for _ in range(n)]
        self._kept = kept
        self._shows_logprobs = shows_logprobs

    def add(self, sequence_index: int, chunk: Chunk) -> list[tuple[int, Chunk]]:
        """Takes a chunk, each with one log probability for each token.

        Returns:
            Nothing, until every sequence has its last chunk; then the best sequences whole, with their new indices and
            scores, the best one first. Of equal ones the lower index wins.
        """
        self._chunks[sequence_index].append(chunk)
        if not all(chunks and chunks[-1].finish_reason is not None for chunks in self._chunks):
            return []
        ranked = sorted((self._whole(chunks) for chunks in self._chunks), key=_score, reverse=True)
        return list(enumerate(ranked[: self._kept]))

    def _whole(self, chunks: list[Chunk]) -> Chunk:
        """One sequence's chunks as one."""
        logprobs = [each for chunk in chunks for each in chunk.logprobs]
        return replace(
            chunks[-1],
            ended_here=False,
            position=0,
            token_ids=[token_id for chunk in chunks for token_id in chunk.token_ids],
            text="".join(chunk.text for chunk in chunks),
            logprobs=logprobs if self._shows_logprobs else (),
            score=sum(each.logprob for each in logprobs) / len(logprobs),
        )


def _score(chunk: Chunk) -> float:
    assert chunk.score is not None
    return chunk.score
