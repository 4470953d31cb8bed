"""Prompts of every kind to token ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import accumulate

from gateway.chat import ChatTemplate
from gateway.errors import InvalidArgument
from gateway.prepared import ModelLimits
from gateway.request import ChatMessage, ChatPrompt, Prompt, SegmentedPrompt, TextPrompt, TokenPrompt
from gateway.tokenizer import Tokenizer
from gateway.validation import check_prompt, check_token_ids, prompt_field, segment_field


class PromptEncoder:
    """Renders and tokenizes.

    Args:
        tokenizer: The model's.
        now: The clock that chat templates see.

    Raises:
        TokenizerError: The model's chat template does not parse.
    """

    def __init__(self, tokenizer: Tokenizer, now: Callable[[], datetime]) -> None:
        self._tokenizer = tokenizer
        self._chat_template = ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens, now)

    def encode(
        self, prompt: Prompt | None, limits: ModelLimits, borders: Sequence[int] = ()
    ) -> tuple[list[int], list[int]]:
        """The token ids of a prompt, and how many of them certainly come from its first segments alone.

        Args:
            prompt: What to encode.
            limits: Of the model.
            borders: Numbers of first segments, in ascending order.

        Returns:
            The ids, and for each border a number of tokens.

        Raises:
            InvalidArgument: The prompt is missing, empty or not acceptable.
        """
        if prompt is None:
            raise InvalidArgument("prompt", "is missing")
        check_prompt(prompt)
        field = prompt_field(prompt)
        whole = _joined(prompt) if isinstance(prompt, SegmentedPrompt) else prompt
        ends = _ends(prompt, borders)
        if isinstance(whole, TokenPrompt):
            _check_ids(prompt, limits)
            return list(whole.token_ids), ends
        if isinstance(whole, TextPrompt):
            token_ids, counts = self._encode_text(whole.text, ends, field, add_special_tokens=whole.add_special_tokens)
        else:
            text, ends = self._chat_template.render_with_borders(whole.messages, ends, field, whole.rendering)
            # The template has written the special tokens already.
            token_ids, counts = self._encode_text(text, ends, field, add_special_tokens=False)
        if not token_ids:
            raise InvalidArgument(field, "has no tokens")
        if max(token_ids) >= limits.vocab_size:
            raise InvalidArgument(field, f"has token {max(token_ids)}; the model's go to {limits.vocab_size - 1}")
        return token_ids, counts

    def _encode_text(
        self, text: str, borders: Sequence[int], field: str, *, add_special_tokens: bool
    ) -> tuple[list[int], list[int]]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(field, "is not valid Unicode text") from error
        return self._tokenizer.encode_with_borders(text, borders, add_special_tokens=add_special_tokens)


def _joined(prompt: SegmentedPrompt) -> TextPrompt | ChatPrompt | TokenPrompt:
    """The prompt without its borders. All segments are of one kind."""
    contents = [segment.content for segment in prompt.segments]
    if isinstance(contents[0], TextPrompt):
        text = "".join(each.text for each in contents if isinstance(each, TextPrompt))
        return TextPrompt(text, contents[0].add_special_tokens)
    if isinstance(contents[0], TokenPrompt):
        return TokenPrompt([token for each in contents if isinstance(each, TokenPrompt) for token in each.token_ids])
    return ChatPrompt([each for each in contents if isinstance(each, ChatMessage)], prompt.rendering)


def _ends(prompt: Prompt, borders: Sequence[int]) -> list[int]:
    """For each number of first segments, how many characters, messages or token ids they have."""
    if not isinstance(prompt, SegmentedPrompt):
        return []
    ends = [0, *accumulate(segment.size for segment in prompt.segments)]
    return [ends[border] for border in borders]


def _check_ids(prompt: Prompt, limits: ModelLimits) -> None:
    if isinstance(prompt, TokenPrompt):
        check_token_ids(prompt.token_ids, "prompt.tokens.token_ids", limits.vocab_size)
    elif isinstance(prompt, SegmentedPrompt):
        for index, segment in enumerate(prompt.segments):
            if isinstance(segment.content, TokenPrompt):
                field = f"{segment_field(index)}.tokens.token_ids"
                check_token_ids(segment.content.token_ids, field, limits.vocab_size)
