"""Which beams of a beam search go on, which are finished, and when the search is over.

The rules are those of `transformers` (`generate(num_beams=...)`, version 5), so that ids and scores are the same:

- All continuations of all beams are ranked by the sum of their log probabilities, whatever their length penalty. One
  that ends with a stop token counts as finished only if it ranks among the first `width`; the best `width` of those
  that do not end go on.
- A finished beam's score is that sum over length ** length_penalty, where the length is of the output alone, its stop
  token included. The best `width` finished beams are kept.
- The search is over when the longest output is reached (then the first `width` continuations are finished, all of
  them), or when there are `width` finished beams and, by `early_stopping`, no better one is to be expected.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvmanager.errors import InvalidRequest
from kvmanager.request import FinishReason
from kvmanager.spec import BeamParams, EarlyStopping

Candidates = tuple[Sequence[int], Sequence[float]]
"""The most likely next tokens of a beam and their log probabilities, most likely first."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """A beam that goes on.

    Attributes:
        parent: index of the beam that it continues.
        token_id: what it adds to that beam.
        score: sum of the log probabilities of its output tokens.
    """

    parent: int
    token_id: int
    score: float


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished beam.

    Attributes:
        token_ids: its output, the stop token included.
        score: sum of its tokens' log probabilities over length ** length_penalty.
        finish_reason: a stop token, or the longest output was reached.
    """

    token_ids: list[int]
    score: float
    finish_reason: FinishReason


class BeamSearch:
    """One beam search, from its first token to its finished beams.

    It starts with one beam, whose output is empty. All beams that are alive have equally long outputs; the caller keeps
    them, in the order in which `advance` returned them.
    """

    def __init__(self, params: BeamParams, max_output: int, stop_token_ids: frozenset[int]) -> None:
        """Starts a search.

        Args:
            params: its width, length penalty and early stopping.
            max_output: output tokens of the longest beam, at least 1.
            stop_token_ids: tokens that end a beam.

        Raises:
            InvalidRequest: max_output ** length_penalty leaves the range of a float.
        """
        assert params.width >= 1
        assert max_output >= 1
        if not abs(params.length_penalty) * math.log(max(2, max_output)) < 700.0:  # exp(709) is about the largest float
            raise InvalidRequest(
                "sampling.length_penalty",
                f"length_penalty is {params.length_penalty:g}; with up to {max_output} output tokens scores overflow",
            )
        self._width = params.width
        self._length_penalty = params.length_penalty
        self._early_stopping = params.early_stopping
        self._max_output = max_output
        self._stop_token_ids = stop_token_ids
        self._scores = [0.0]
        self._finished: list[Hypothesis] = []  # best first, at most `width`
        self._done = False

    @property
    def num_candidates(self) -> int:
        """Most likely tokens needed of each beam.

        At most `width` continuations go on, and before the last of them one beam can have at most every stop token.
        """
        return self._width + len(self._stop_token_ids)

    @property
    def done(self) -> bool:
        """The search is over."""
        return self._done

    def best(self, n: int) -> list[Hypothesis]:
        """Returns the n best finished beams, best first.

        Once the search is done there are `width` of them, or fewer where so many different outputs do not exist.
        """
        return self._finished[:n]

    def advance(self, outputs: Sequence[Sequence[int]], candidates: Sequence[Candidates]) -> list[Continuation]:
        """Takes one token further.

        Args:
            outputs: output tokens of each beam that is alive, in the order of the last return value.
            candidates: `num_candidates` next tokens of each of them, or all there are. What has no finite log
                probability is never chosen.

        Returns:
            The beams that are alive now, best first: `width` of them, or fewer where so many different ones do not
            exist; of equal ones the earlier parent's, then the one that its candidates have first. Empty when the
            search is over.
        """
        assert not self._done
        assert len(outputs) == len(candidates) == len(self._scores)
        length = len(outputs[0]) + 1
        last = length >= self._max_output
        alive: list[Continuation] = []
        ended: list[Hypothesis] = []
        for rank, (cost, parent, token_id) in enumerate(self._ranked(candidates), start=1):
            if last or token_id in self._stop_token_ids:
                if rank <= self._width:
                    reason = FinishReason.STOP if token_id in self._stop_token_ids else FinishReason.LENGTH
                    ended.append(Hypothesis([*outputs[parent], token_id], self._normalized(-cost, length), reason))
            else:
                alive.append(Continuation(parent, token_id, -cost))
            if len(alive) == self._width or (last and rank == self._width):
                break
        self._keep(ended)
        self._done = not alive or not self._may_improve(alive[0].score, length)
        if self._done:
            alive = []
        self._scores = [continuation.score for continuation in alive]
        return alive

    def shrink(self, max_output: int, outputs: Sequence[Sequence[int]]) -> None:
        """The longest beam gets shorter. Where the living ones are that long already, they finish as they are.

        Args:
            max_output: output tokens of the longest beam, at least 1.
            outputs: as in `advance`.
        """
        assert max_output >= 1
        self._max_output = min(self._max_output, max_output)
        if self._done or len(outputs[0]) < self._max_output:
            return
        self._keep(
            [
                Hypothesis(list(output), self._normalized(score, len(output)), FinishReason.LENGTH)
                for output, score in zip(outputs, self._scores, strict=True)
            ]
        )
        self._scores = []
        self._done = True

    def _ranked(self, candidates: Sequence[Candidates]) -> Iterator[tuple[float, int, int]]:
        """Every continuation as (minus its score, parent, token), best first; computed as far as it is asked for."""
        # Each row is in order, and no two rows have the same parent: a tie never gets as far as the token.
        rows = zip(self._scores, candidates, strict=True)
        return heapq.merge(*(_row(parent, score, *row) for parent, (score, row) in enumerate(rows)))

    def _keep(self, ended: list[Hypothesis]) -> None:
        """Adds finished beams; of equal ones those that finished earlier come first."""
        self._finished = sorted(self._finished + ended, key=lambda hypothesis: -hypothesis.score)[: self._width]

    def _may_improve(self, best_score: float, length: int) -> bool:
        """Whether beams that are alive, the best of which has this score, may still get among the finished ones."""
        if len(self._finished) < self._width:
            return True
        if self._early_stopping is EarlyStopping.FIRST:
            return False
        if self._early_stopping is EarlyStopping.NEVER and self._length_penalty > 0.0:
            # The sum can only fall; what it may get at best is what it is now, over the longest length.
            length = self._max_output
        return self._normalized(best_score, length) > self._finished[-1].score

    def _normalized(self, score: float, length: int) -> float:
        return float(score / length**self._length_penalty)


def _row(
    parent: int, score: float, token_ids: Sequence[int], logprobs: Sequence[float]
) -> Iterator[tuple[float, int, int]]:
    for token_id, logprob in zip(token_ids, logprobs, strict=True):
        if not logprob > -math.inf:  # masked, and so is all that follows
            return
        yield -(score + logprob), parent, token_id
