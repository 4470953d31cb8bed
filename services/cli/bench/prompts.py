"""Prompts made up from seeds: the same seed gives the same prompt, whatever server it is for."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.config import ConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Prompt = str | list[int]
"""Text or token ids."""

# Common enough to be one token each, with the space before, in most vocabularies that know English.
_COMMON = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an they which
one you were her all she there would their we him been has when who will more no if out so said what up its
about into than them can only other new some could time these two may then do first any my now such like our
over man me even most made after also did many before must through back years where much your way well down
should because each just those people how too little state good very make world still own see men work long
get here between both life being under never day same another know while last might us great old year off come
since against go came right used take three himself few house use during without again place around however
home small found thought went say part once general high upon school every water light paper page book river
stone field garden city road table window music story letter number word green white black summer winter
morning evening night hand head eye mind
"""
_WORDS = _COMMON.split()
_LEAST_WORDS = 32


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a prompt: the same key is the same content.

    Attributes:
        tokens: How many of the content's first tokens it has.
    """

    key: str
    tokens: int


class PromptMaker:
    """Makes prompts out of pieces.

    Args:
        draw: Some of the vocabulary, in the order of a random number generator.
        join: Makes a prompt of that.
    """

    def __init__(
        self, seed: int, draw: Callable[[random.Random, int], list[str] | list[int]], join: Callable[..., Prompt]
    ) -> None:
        self._seed = seed
        self._draw = draw
        self._join = join

    def prompt(self, pieces: Sequence[Piece]) -> Prompt:
        """The prompt of all pieces, one after the other."""
        parts = [self._draw(random.Random(f"{self._seed} {piece.key}"), piece.tokens) for piece in pieces]
        return self._join([token for part in parts for token in part])


def text_maker(seed: int, tokenizer: str | None = None) -> PromptMaker:
    """Makes text of one word for each token.

    Args:
        tokenizer: File or folder; then only its words that are exactly one token are used. Without one, a length is as
            near as common words are to tokens.

    Raises:
        ConfigError: There is no such tokenizer, or it has hardly any words.
    """
    words = _WORDS if tokenizer is None else _words_of(tokenizer)
    return PromptMaker(seed, lambda rng, count: rng.choices(words, k=count), " ".join)


def token_maker(seed: int, vocab_size: int) -> PromptMaker:
    """Makes token ids. The first ids of a vocabulary, which are often special, are left out."""
    first = min(256, vocab_size // 2)
    return PromptMaker(seed, lambda rng, count: [rng.randrange(first, vocab_size) for _ in range(count)], list)


def _words_of(place: str) -> list[str]:
    from pathlib import Path

    from tokenizers import Tokenizer

    path = Path(place)
    try:
        tokenizer = Tokenizer.from_file(str(path / "tokenizer.json" if path.is_dir() else path))
    except Exception as error:  # of the library, which has no type of its own
        raise ConfigError(f"tokenizer: cannot read {place}: {error}") from error
    words = [word for word in sorted(_plain_words(tokenizer)) if _is_one_token(tokenizer, word)]
    if len(words) < _LEAST_WORDS:
        raise ConfigError(
            f"tokenizer: {place} has only {len(words)} words that are one token, and {_LEAST_WORDS} are needed; use"
            " --token-ids"
        )
    return words


def _plain_words(tokenizer: Tokenizer) -> set[str]:
    decoded = (tokenizer.decode([token_id], skip_special_tokens=True) for token_id in tokenizer.get_vocab().values())
    words = {text.strip() for text in decoded}
    return {word for word in words if word.isascii() and word.isalpha() and word.islower()}


def _is_one_token(tokenizer: Tokenizer, word: str) -> bool:
    """After a space, which is how it stands in a prompt, and also at its beginning."""
    once, twice = (len(tokenizer.encode(text, add_special_tokens=False).ids) for text in (word, f"{word} {word}"))
    return (once, twice) == (1, 2)
