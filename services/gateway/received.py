"""Tokens as the KV manager sends them, and what a request has of them: each once, without a gap, whoever sent it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.errors import PositionGap
from gateway.output import FinishReason, TokenLogprobs


@dataclass(slots=True)
class Update:
    """New tokens of one sequence.

    Attributes:
        position: Index in the sequence's output of the first token.
        logprobs: One for each token, or none.
        finish_reason: Set when the sequence has ended.
        score: Of a ranked sequence, with its last tokens.
    """

    sequence_index: int
    position: int
    token_ids: list[int]
    logprobs: Sequence[TokenLogprobs] = ()
    finish_reason: FinishReason | None = None
    score: float | None = None

    def join(self, later: Update) -> bool:
        """Takes in what follows for the same sequence. Returns False where it does not follow."""
        follows = later.position == self.position + len(self.token_ids) and self.finish_reason is None
        if not follows or bool(later.logprobs) != bool(self.logprobs):
            return False
        self.token_ids += later.token_ids
        if self.logprobs:
            self.logprobs = [*self.logprobs, *later.logprobs]
        self.finish_reason, self.score = later.finish_reason, later.score
        return True

    def split(self, position: int) -> list[Update]:
        """What comes before a position, and what comes from there on; only one of them where there is no border."""
        count = position - self.position
        if not 0 < count < len(self.token_ids):
            return [self]
        first = Update(self.sequence_index, self.position, self.token_ids[:count], self.logprobs[:count])
        rest = Update(
            self.sequence_index,
            position,
            self.token_ids[count:],
            self.logprobs[count:],
            self.finish_reason,
            self.score,
        )
        return [first, rest]


class ReceivedSequence:
    """What there is of one sequence.

    Attributes:
        token_ids: From the first one on.
        logprobs: One for each token, or none.
        score: Where it is ranked.
        finish_reason: Set when it has ended; what comes afterwards is not taken.
    """

    __slots__ = ("finish_reason", "logprobs", "score", "token_ids")

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.score: float | None = None
        self.finish_reason: FinishReason | None = None

    def take(self, update: Update) -> bool:
        """Notes what is new in an update, and cuts off what is not. Returns False where nothing is new.

        Raises:
            PositionGap: Tokens between the last ones and these are missing.
        """
        if self.finish_reason is not None:
            return False
        repeated = len(self.token_ids) - update.position
        if repeated:
            if repeated < 0:
                missing = f"from {len(self.token_ids)} to {update.position - 1}"
                raise PositionGap(f"tokens {missing} of a sequence are missing")
            update.position += repeated
            update.token_ids = update.token_ids[repeated:]
            update.logprobs = update.logprobs[repeated:]
        if not update.token_ids and update.finish_reason is None:
            return False
        self.token_ids += update.token_ids
        if update.logprobs:
            self.logprobs += update.logprobs
        if update.finish_reason is not None:
            self.finish_reason, self.score = update.finish_reason, update.score
        return True

    def since(self, position: int, sequence_index: int) -> Update:
        """All that has come from a position on."""
        return Update(
            sequence_index,
            position,
            self.token_ids[position:],
            self.logprobs[position:],
            self.finish_reason,
            self.score,
        )
