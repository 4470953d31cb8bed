"""Finds stop strings in text that arrives piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopPattern:
    """A stop string, prepared for searching (Knuth, Morris and Pratt, SIAM J. Comput. 6(2), 1977)."""

    text: str
    # fallback[i]: length of the longest proper prefix of text that ends its first i characters.
    fallback: tuple[int, ...]

    @classmethod
    def compile(cls, text: str) -> StopPattern:
        fallback = [0, 0]
        length = 0
        for character in text[1:]:
            while length and text[length] != character:
                length = fallback[length]
            length += text[length] == character
            fallback.append(length)
        return cls(text, tuple(fallback))

    def step(self, matched: int, character: str) -> int:
        """How many characters of the stop string are matched after one more character of the text."""
        while matched and self.text[matched] != character:
            matched = self.fallback[matched]
        return matched + (self.text[matched] == character)


class StopMatcher:
    """Passes on a text up to the stop string that is completed first.

    Keeps back only what could still become a stop string. Of two that are completed by the same character the longer
    one counts. What comes out does not depend on how the text is cut into pieces.
    """

    def __init__(self, patterns: Sequence[StopPattern]) -> None:
        self._patterns = patterns
        self._matched = [0] * len(patterns)
        self._held = ""
        self.stopped = False

    def __bool__(self) -> bool:
        """Whether there are any stop strings."""
        return bool(self._patterns)

    def add(self, text: str) -> str:
        """The text that is now known to come before any stop string. Empty once one has been found."""
        if self.stopped:
            return ""
        if not self._patterns:
            return text
        text = self._held + text
        for end in range(len(self._held) + 1, len(text) + 1):
            if stop := self._step(text[end - 1]):
                self.stopped = True
                self._held = ""
                return text[: end - stop]
        return self._hold(text)

    def finish(self) -> str:
        """The text that was kept back, when nothing follows."""
        held, self._held = self._held, ""
        return held

    def _step(self, character: str) -> int:
        """Length of the stop string that the character completes, or 0."""
        completed = 0
        for index, pattern in enumerate(self._patterns):
            matched = pattern.step(self._matched[index], character)
            self._matched[index] = matched
            if matched == len(pattern.text):
                completed = max(completed, matched)
        return completed

    def _hold(self, text: str) -> str:
        certain = len(text) - max(self._matched)
        self._held = text[certain:]
        return text[:certain]
