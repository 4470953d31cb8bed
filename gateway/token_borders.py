"""Which tokens of a text are made of nothing but the characters before a border.

Tokenizers say which characters each token comes from. Three things are added so that this errs on one side only, that
of finding a token to depend on characters behind the border:

- Characters that no token comes from count with the token before them.
- A character that may be composed with those before it (Unicode normalization) is not cut off from them.
- Where the tokenizer rewrites its text in a way that is not known to keep to single characters, no token counts as
  certainly before any border but the text's end.
"""

from __future__ import annotations

import json
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import tokenizers


def keep_whole_offsets(backend: tokenizers.Tokenizer) -> None:
    """Lets a token's characters include its spaces, which some tokenizers leave out. Changes no token."""
    processor = backend.post_processor
    if processor is None:
        return
    description = json.loads(processor.__getstate__())
    for part in _parts(description, "processors"):
        if "trim_offsets" in part:
            part["trim_offsets"] = False
    processor.__setstate__(json.dumps(description).encode())
    backend.post_processor = processor


class TokenBorders:
    """Borders between the tokens of one tokenizer.

    Args:
        backend: With whole offsets.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._known = all(_keeps_to_characters(part) for part in _normalizers(backend))

    def tokens_before(self, encoding: tokenizers.Encoding, text: str, borders: Sequence[int]) -> list[int]:
        """How many tokens come before each border.

        Tokens that the tokenizer adds in front of the text come before every border.

        Args:
            encoding: Of the text.
            text: What was encoded.
            borders: Numbers of characters, in ascending order.
        """
        if not borders:
            return []
        ends = _token_ends(encoding, len(text))
        if not self._known:
            return [bisect_right(ends, border if border == len(text) else 0) for border in borders]
        return [bisect_right(ends, _before_composition(text, border)) for border in borders]


def _token_ends(encoding: tokenizers.Encoding, length: int) -> list[int]:
    """For each token, how many characters it and all before it come from. Ascending."""
    offsets, added = encoding.offsets, encoding.special_tokens_mask
    # Where the next token of the text starts; what lies between belongs to the token before.
    next_starts, next_start = [length] * len(offsets), length
    for index in range(len(offsets) - 1, -1, -1):
        next_starts[index] = next_start
        if not added[index]:
            next_start = offsets[index][0]
    ends, end = [], 0
    for (_, own_end), start, is_added in zip(offsets, next_starts, added, strict=True):
        if not is_added:
            end = max(end, own_end, start)
        ends.append(end)
    return ends


def _before_composition(text: str, border: int) -> int:
    """The border, moved to the left until no composed character can stand across it."""
    while 0 < border < len(text) and _may_compose(text[border]):
        border -= 1
    return border


def _may_compose(character: str) -> bool:
    """Whether a character can become one with those before it: a mark, or a Hangul vowel or final consonant."""
    first = unicodedata.normalize("NFKD", character)[0]
    return unicodedata.category(first).startswith("M") or "\u1160" <= first <= "\u11ff"


# Each of them makes something of one character, or of a character and the marks after it.
_BY_CHARACTER = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Prepend", "ByteLevel"}


def _keeps_to_characters(normalizer: dict[str, Any]) -> bool:
    if normalizer["type"] == "Replace":
        replaced = normalizer["pattern"].get("String")
        return replaced is not None and len(replaced) == 1
    return normalizer["type"] in _BY_CHARACTER


def _normalizers(backend: tokenizers.Tokenizer) -> Iterator[dict[str, Any]]:
    if backend.normalizer is not None:
        yield from _parts(json.loads(backend.normalizer.__getstate__()), "normalizers")


def _parts(description: dict[str, Any], children: str) -> Iterator[dict[str, Any]]:
    """The parts of a description that are no sequences of others."""
    if description["type"] != "Sequence":
        yield description
        return
    for part in description[children]:
        yield from _parts(part, children)
