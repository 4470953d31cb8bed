"""What a request's sequences have produced: tokens in, text and token counts out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from gateway.detokenizer import Detokenizer
from gateway.errors import PositionGap
from gateway.stop_strings import StopMatcher


class FinishReason(Enum):
    """Why a sequence ended: at an end-of-sequence token, stop token or stop string, or at a length limit."""

    STOP = auto()
    LENGTH = auto()


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities at one position: of the chosen token, and of the most likely ones, most likely first."""

    logprob: float
    top_token_ids: Sequence[int] = ()
    top_logprobs: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """New output of one sequence.

    Attributes:
        position: Index in the sequence's output of the first token.
        text: Text that became certain.
        logprobs: One for each token, or none.
        finish_reason: Set in the sequence's last chunk.
        score: Of a ranked sequence, in its last chunk.
        ended_here: A stop string ended the sequence, which the backend does not know yet: abort it there.
    """

    position: int
    token_ids: Sequence[int]
    text: str
    logprobs: Sequence[TokenLogprobs] = ()
    finish_reason: FinishReason | None = None
    ended_here: bool = False
    score: float | None = None


class SequenceOutput:
    """One sequence's output.

    Args:
        detokenizer: Of this sequence.
        stops: Of this sequence.
        min_tokens: No stop string is looked for in the text of the tokens before the last of these.
    """

    def __init__(self, detokenizer: Detokenizer, stops: StopMatcher, min_tokens: int = 0) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._min_tokens = min_tokens
        self.num_tokens = 0
        self.finish_reason: FinishReason | None = None

    def add(
        self,
        position: int,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprobs] = (),
        finish_reason: FinishReason | None = None,
        score: float | None = None,
    ) -> Chunk | None:
        """Takes tokens from the backend.

        Args:
            position: Index in the sequence's output of the first token. Tokens that were there before are dropped.
            token_ids: The tokens.
            logprobs: One for each token, or none.
            finish_reason: Set when the backend has ended the sequence.
            score: Of a ranked sequence, with its last tokens.

        Returns:
            What to send on, or None where there is nothing new: a repeat, or tokens after the end.

        Raises:
            PositionGap: Tokens between the last ones and these are missing.
        """
        if self.finish_reason is not None:
            return None
        if position > self.num_tokens:
            raise PositionGap(f"tokens from {self.num_tokens} to {position - 1} of a sequence are missing")
        repeated = self.num_tokens - position
        token_ids, logprobs = token_ids[repeated:], logprobs[repeated:]
        if not token_ids and finish_reason is None:
            return None
        return self._take(token_ids, logprobs, finish_reason, score)

    def _take(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprobs],
        backend_reason: FinishReason | None,
        score: float | None,
    ) -> Chunk:
        position = self.num_tokens
        text = self._text_of(token_ids)
        if backend_reason is not None:
            text += self._stops.add(self._detokenizer.finish()) + self._stops.finish()
        self.finish_reason = FinishReason.STOP if self._stops.stopped else backend_reason
        taken = self.num_tokens - position
        return Chunk(
            position=position,
            token_ids=token_ids[:taken],
            text=text,
            logprobs=logprobs[:taken],
            finish_reason=self.finish_reason,
            ended_here=self.finish_reason is not None and backend_reason is None,
            score=score,
        )

    def _text_of(self, token_ids: Sequence[int]) -> str:
        """The text to send on with more tokens, up to a stop string."""
        if not self._stops:
            self.num_tokens += len(token_ids)
            return self._detokenizer.add(token_ids)
        text = ""
        for token_id in token_ids:
            self.num_tokens += 1
            new = self._detokenizer.add((token_id,))
            text += new if self.num_tokens < self._min_tokens else self._stops.add(new)
            if self._stops.stopped:
                break
        return text


class RequestOutput:
    """All sequences of one request, in the order of their indices."""

    def __init__(self, sequences: Sequence[SequenceOutput]) -> None:
        self._sequences = sequences

    def add(
        self,
        sequence_index: int,
        position: int,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprobs] = (),
        finish_reason: FinishReason | None = None,
        score: float | None = None,
    ) -> Chunk | None:
        """As `SequenceOutput.add`, for one of the sequences."""
        return self._sequences[sequence_index].add(position, token_ids, logprobs, finish_reason, score)

    @property
    def finished(self) -> bool:
        """Whether every sequence has ended."""
        return all(sequence.finish_reason is not None for sequence in self._sequences)
