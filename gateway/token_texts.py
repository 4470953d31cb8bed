"""Single tokens as bytes and as text, for those who look at them one by one."""

from __future__ import annotations

import re

from gateway.detokenizer import ByteLevelTokens, decoder_kinds
from gateway.tokenizer import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenTexts:
    """What each token adds to a text that it is in the middle of."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        kinds = set(decoder_kinds(tokenizer))
        self._byte_level = ByteLevelTokens(tokenizer) if "ByteLevel" in kinds else None
        self._byte_fallback = "ByteFallback" in kinds
        self._known: dict[int, bytes] = {}
        self._context = self._find_context() if self._byte_level is None else []

    def bytes_of(self, token_id: int) -> bytes:
        """The token's bytes: UTF-8, of which it may hold only a part of a character. None of an unknown id."""
        if self._byte_level is not None:
            return self._byte_level[token_id]
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._decode(token_id)
        return known

    def text_of(self, token_id: int) -> str:
        """The same as text; what is no character is replaced."""
        return self.bytes_of(token_id).decode("utf-8", "replace")

    def _decode(self, token_id: int) -> bytes:
        token = self._tokenizer.token(token_id)
        if token is None:
            return b""
        if self._byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        before = self._text(self._context)
        return self._text([*self._context, token_id])[len(before) :].encode()

    def _find_context(self) -> list[int]:
        """A token with text: behind it, no decoder takes a token for the beginning of a text."""
        ordinary = (token_id for token_id in range(self._tokenizer.vocab_size) if self._is_ordinary(token_id))
        return [next(token_id for token_id in ordinary if self._text([token_id]))]

    def _is_ordinary(self, token_id: int) -> bool:
        token = self._tokenizer.token(token_id)
        return token is not None and token_id not in self._tokenizer.special_token_ids and token.isalpha()

    def _text(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)
