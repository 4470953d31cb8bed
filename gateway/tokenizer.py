"""Text to token ids and back, for one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tokenizers

from gateway.token_borders import TokenBorders, keep_whole_offsets


class Tokenizer:
    """A ``tokenizers.Tokenizer`` with what else a server needs to know about a model's vocabulary.

    Args:
        backend: Does the work. Truncation and padding saved with it are switched off.
        eos_token_ids: Tokens that end a sequence.
        special_tokens: What a chat template may call by name, for example ``bos_token``.
        chat_template: Jinja source, or None for a model without one.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_token_ids: Sequence[int] = (),
        special_tokens: Mapping[str, str] | None = None,
        chat_template: str | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        keep_whole_offsets(backend)
        self.backend = backend
        self._borders = TokenBorders(backend)
        self.eos_token_ids = tuple(dict.fromkeys(eos_token_ids))
        self.special_tokens = dict(special_tokens or {})
        self.chat_template = chat_template
        self.special_token_ids = frozenset(
            token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special
        )

    @property
    def vocab_size(self) -> int:
        """Number of tokens that the tokenizer knows. A model's embedding may have more rows."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text.

        Args:
            text: Special tokens written out in it become those tokens.
            add_special_tokens: Also add what the model expects around a text, usually a first token.
        """
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_with_borders(
        self, text: str, borders: Sequence[int], *, add_special_tokens: bool = True
    ) -> tuple[list[int], list[int]]:
        """The token ids of a text, and how many of them certainly come from the text before each border.

        Args:
            text: As of `encode`.
            borders: Numbers of characters, in ascending order.
            add_special_tokens: As of `encode`. What it adds in front comes before every border.
        """
        encoding = self.backend.encode(text, add_special_tokens=add_special_tokens)
        return encoding.ids, self._borders.tokens_before(encoding, text, borders)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids. Ids that the tokenizer does not know are left out."""
        return self.backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token(self, token_id: int) -> str | None:
        """One token as the vocabulary spells it, or None for an unknown id."""
        return self.backend.id_to_token(token_id)
