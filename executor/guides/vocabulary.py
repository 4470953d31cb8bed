"""What guides know of a model's tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from executor.errors import VocabularyError


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The text of each token, and which of them end a sequence.

    Attributes:
        tokenizer: the model's, as the package `tokenizers` writes it to tokenizer.json.
        eos_token_ids: the only tokens that a guide allows at its end.
    """

    tokenizer: str
    eos_token_ids: tuple[int, ...]


ReadVocabulary: TypeAlias = Callable[[], Vocabulary]
"""Reads it, or raises VocabularyError."""


def no_vocabulary() -> Vocabulary:
    """Where nobody has said what the tokens mean."""
    raise VocabularyError("the executor was started without a tokenizer")
