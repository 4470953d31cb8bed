"""The grammars that sequences follow, each compiled once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress

import llguidance
import numpy as np
import numpy.typing as npt

from executor.errors import VocabularyError
from executor.guides.guide import Guide
from executor.guides.vocabulary import ReadVocabulary
from executor.sequences import SequenceState

MAX_COMPILED = 32
"""Compiled grammars that are kept, those used last."""

LIMITS = llguidance.LLParserLimits(
    max_items_in_row=1000, step_max_items=2000, max_lexer_states=20_000, verbose_errors=False
)
"""What a mask may cost, for which others' tokens wait (some 15 ms), and what a grammar may hold (some 40 MB).

The gateway keeps to the same: see `gateway.guide_compiler`.
"""

_WORD = 32


class Guides:
    """Starts the guides of sequences, and has all of a step's look ahead.

    Args:
        read_vocabulary: called once, for the first guide: whoever has none pays nothing.
        vocab_size: of the logits.
    """

    def __init__(self, read_vocabulary: ReadVocabulary, vocab_size: int) -> None:
        self._read_vocabulary = read_vocabulary
        self._vocab_size = vocab_size
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._compiled: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()

    def start(self, grammar: str) -> Guide:
        """A guide at the beginning of a grammar. What is wrong with it shows when it looks ahead."""
        try:
            tokenizer = self._tokenizer = self._tokenizer or self._make_tokenizer()
        except VocabularyError as error:
            return Guide(None, self._known(self._vocab_size), error=f"the executor can't guide answers: {error}")

        def new_matcher() -> llguidance.LLMatcher:
            self._compiled.pop(grammar, None)
            return llguidance.LLMatcher(tokenizer, grammar, limits=LIMITS, log_level=0)

        matcher = self._compiled.get(grammar) or self._keep(grammar, new_matcher())
        self._compiled.move_to_end(grammar)
        return Guide(matcher.deep_copy(), self._known(tokenizer.vocab_size), new_matcher)

    def _keep(self, grammar: str, matcher: llguidance.LLMatcher) -> llguidance.LLMatcher:
        self._compiled[grammar] = matcher
        if len(self._compiled) > MAX_COMPILED:
            self._compiled.popitem(last=False)
        return matcher

    def _known(self, num_tokens: int) -> npt.NDArray[np.int32]:
        """The model's tokens among so many: a tokenizer may have some that the model has not."""
        bits = np.arange(-(-num_tokens // _WORD) * _WORD) < self._vocab_size
        return np.packbits(bits, bitorder="little").view(np.int32)

    def _make_tokenizer(self) -> llguidance.LLTokenizer:
        vocabulary = self._read_vocabulary()
        eos = [token for token in vocabulary.eos_token_ids if token < self._vocab_size]
        if not eos:
            raise VocabularyError("the model has no end-of-sequence token")
        with suppress(ValueError):
            # A model may have more rows than its tokenizer has tokens,
            return llguidance.LLTokenizer(vocabulary.tokenizer, self._vocab_size, eos)
        try:
            # or fewer.
            return llguidance.LLTokenizer(vocabulary.tokenizer, None, eos)
        except ValueError as error:
            raise VocabularyError(f"its tokenizer is of a kind that guides can't read: {error}") from error


def follow(sequences: Sequence[SequenceState]) -> list[tuple[int, str]]:
    """Has the guides among sequences follow all tokens, which are on the host.

    Returns:
        Sequences that can't go on, and why.
    """
    failures = []
    for sequence in sequences:
        guide = sequence.guide
        if guide is None:
            continue
        guide.follow(sequence.token_ids, sequence.prompt_length)
        if guide.error is not None:
            failures.append((sequence.sequence_id, guide.error))
    return failures
