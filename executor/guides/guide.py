"""Where one sequence is in its grammar."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import llguidance
import llguidance.numpy
import numpy as np
import numpy.typing as npt

NewMatcher = Callable[[], llguidance.LLMatcher]
"""Makes a matcher at the beginning of the grammar, which shares nothing with any other."""


class Guide:
    """Follows a sequence's output, and says which tokens may come next.

    What it says depends on the grammar and on the output alone. So it is the same after preemption, for a copy, and on
    another executor.

    Args:
        matcher: at the output's beginning; None where there is none.
        known: [words] of 32 tokens each, a bit for each token that the model has, lowest first.
        new_matcher: None where the matcher is.
        error: why there is no matcher.

    Attributes:
        allowed: as `known`: may the token be the next one? Stays where it is in memory.
        error: why the sequence can't go on; then every token is allowed.
    """

    def __init__(
        self,
        matcher: llguidance.LLMatcher | None,
        known: npt.NDArray[np.int32],
        new_matcher: NewMatcher | None = None,
        error: str | None = None,
    ) -> None:
        self._matcher = matcher
        self._known = known
        self._new_matcher = new_matcher
        self._num_followed = 0
        self._is_over = False
        self._mask = known[None].copy()
        self.allowed: npt.NDArray[np.int32] = self._mask[0]
        self.error = error

    def fork(self) -> Guide:
        """A copy that goes its own way from here on."""
        copy = Guide(self._matcher and self._matcher.deep_copy(), self._known, self._new_matcher, self.error)
        copy._num_followed, copy._is_over = self._num_followed, self._is_over
        copy._mask[:] = self._mask
        return copy

    @property
    def is_over(self) -> bool:
        """The output is all that was asked for: nothing but its end is allowed."""
        return self._is_over

    def follow(self, token_ids: array[int], prompt_length: int) -> None:
        """Takes in what is new of a sequence's output, which is behind its prompt, and writes what may come next."""
        if self._matcher is None or self._is_over or self.error is not None:
            return
        reason = self._look(self._matcher, token_ids[prompt_length + self._num_followed :])
        if reason is not None and self._new_matcher is not None:
            # Copies of a matcher share the states of its lexer, and their limit: others may have used it up. So once it
            # gets a matcher of its own.
            self._matcher, self._new_matcher = self._new_matcher(), None
            reason = self._look(self._matcher, token_ids[prompt_length:])
        self._num_followed = len(token_ids) - prompt_length
        # From here on it allows the end alone, also behind the end: a step may be under way that goes so far.
        self._is_over = self._matcher.is_stopped()
        if reason is not None:
            self.error = f"after {self._num_followed} tokens: {reason}"
            self._mask[:] = self._known

    def _look(self, matcher: llguidance.LLMatcher, token_ids: array[int]) -> str | None:
        """Returns why there is no way on, if that is so."""
        if token_ids:
            matcher.consume_tokens(token_ids.tolist())
        llguidance.numpy.fill_next_token_bitmask(matcher, self._mask)
        np.bitwise_and(self._mask, self._known, out=self._mask)
        if matcher.is_error():
            return first_line(matcher.get_error())
        return None if self._mask.any() else "the model has no token that could come next"


def first_line(message: str) -> str:
    """What a matcher says, without the state that it prints behind it."""
    return message.strip().partition("\n")[0]
