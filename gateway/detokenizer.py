"""Token ids to text while they arrive.

Text comes out as soon as it is certain, and all of it together equals decoding all ids at once, whatever the ids. The
`tokenizers` package's own DecodeStream does not promise that: it keeps back everything after a byte that is no
character, has no end, and gives up on byte tokens that form none.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from gateway.errors import TokenizerError
from gateway.tokenizer import Tokenizer


class Detokenizer(Protocol):
    """The text of one growing sequence. A token costs the same however long the sequence is."""

    def add(self, token_ids: Sequence[int]) -> str:
        """The text that became certain with these tokens: never a part of a character."""
        ...

    def finish(self) -> str:
        """The rest of the text, when no token follows. Call it once, last."""
        ...


class DetokenizerFactory:
    """Makes detokenizers for one tokenizer.

    Raises:
        TokenizerError: The tokenizer's decoder looks at what follows a token in ways that are not known here.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        kinds = set(decoder_kinds(tokenizer))
        self._byte_level = ByteLevelTokens(tokenizer) if "ByteLevel" in kinds else None
        self._byte_fallback = "ByteFallback" in kinds
        known = {"ByteLevel", "Fuse"} if self._byte_level else _INDEPENDENT | {"ByteFallback"}
        if not kinds <= known:
            raise TokenizerError(f"the tokenizer's decoder is not supported: {', '.join(sorted(kinds))}")

    def create(self, *, skip_special_tokens: bool) -> Detokenizer:
        """A detokenizer for one sequence, with or without the text of special tokens."""
        skipped = self._tokenizer.special_token_ids if skip_special_tokens else frozenset()
        if self._byte_level:
            return _ByteLevelDetokenizer(self._byte_level, skipped)
        return _WindowDetokenizer(self._tokenizer, skipped, byte_fallback=self._byte_fallback)


# Decoders that treat every token but the first alike, without looking at its neighbours.
_INDEPENDENT = {"Fuse", "Metaspace", "Replace", "Strip", "WordPiece"}


def decoder_kinds(tokenizer: Tokenizer) -> Iterator[str]:
    decoder = tokenizer.backend.decoder
    pending: list[Any] = [] if decoder is None else [json.loads(decoder.__getstate__())]
    while pending:
        description = pending.pop()
        if description["type"] == "Sequence":
            pending.extend(description["decoders"])
        else:
            yield description["type"]


# --- Byte-level: every token is some bytes, and the text is those bytes as UTF-8 -----------------------------------


def byte_level_alphabet() -> dict[str, int]:
    """The characters that stand for bytes in byte-level vocabularies (GPT-2; Radford et al., 2019).

    Printable ones stand for themselves, the others, in order, for those from U+0100 on.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


class ByteLevelTokens:
    """The bytes of each token, worked out when first seen."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._alphabet: Mapping[str, int] = byte_level_alphabet()
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
        if (known := self._known.get(token_id)) is not None:
            return known
        token = self._tokenizer.token(token_id)
        if token is None:
            return b""
        try:
            content = bytes(self._alphabet[character] for character in token)
        except KeyError:  # an added token, which is written as it is
            content = token.encode()
        self._known[token_id] = content
        return content


class _ByteLevelDetokenizer:
    def __init__(self, tokens: ByteLevelTokens, skipped: frozenset[int]) -> None:
        self._tokens = tokens
        self._skipped = skipped
        # Keeps up to three bytes of an incomplete character.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token_ids: Sequence[int]) -> str:
        content = b"".join(self._tokens[token_id] for token_id in token_ids if token_id not in self._skipped)
        return self._decoder.decode(content)

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


# --- Everything else: decode new tokens behind a context, and cut the context off ----------------------------------

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class _WindowDetokenizer:
    """Lets the library decode the new tokens, preceded by the sequence's first ones.

    The context is there because decoders treat the beginning of a text in its own way (most drop its leading space). It
    ends as soon as it has any text, since what follows is then no beginning any more.

    With byte fallback, neighbouring byte tokens are one unit: characters if all of them together are UTF-8, else one
    replacement character each. So they are kept back until another token ends them.
    """

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int], *, byte_fallback: bool) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._byte_fallback = byte_fallback
        self._context: list[int] = []
        self._context_text = ""
        self._pending: list[int] = []

    def add(self, token_ids: Sequence[int]) -> str:
        return "".join(self._add(token_id) for token_id in token_ids)

    def _add(self, token_id: int) -> str:
        token = None if token_id in self._skipped else self._tokenizer.token(token_id)
        if token is None:
            return ""
        self._pending.append(token_id)
        if self._byte_fallback and _BYTE_TOKEN.fullmatch(token):
            return ""
        return self.finish()

    def finish(self) -> str:
        if not self._pending:
            return ""
        tokens = self._context + self._pending
        # Skipped tokens are not among them.
        text = self._tokenizer.decode(tokens, skip_special_tokens=False)
        new = text[len(self._context_text) :]
        if not self._context_text:
            self._context, self._context_text = tokens, text
        self._pending = []
        return new
