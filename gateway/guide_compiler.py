"""Guides as grammars: made of what a client states, and compiled to see whether they can be followed."""

from __future__ import annotations

import json
from collections.abc import Sequence

import llguidance

from gateway.errors import TokenizerError
from gateway.request import Guide, GuideKind
from gateway.schema_ends import can_end

LIMITS = llguidance.LLParserLimits(
    max_items_in_row=1000, step_max_items=2000, max_lexer_states=20_000, verbose_errors=False
)
"""What a grammar may cost at each token, and hold. An executor keeps to the same: see `executor.guides.guides`."""

MAX_WHITESPACE = 64
"""Characters of whitespace between two parts of a JSON document: a model that likes blank lines must come to an end."""

_WHITESPACE = rf"[\x20\x0A\x0D\x09]{{1,{MAX_WHITESPACE}}}"
_EMPTY = ("NoExtension", "NoExtensionBias")


def grammar_of(guide: Guide) -> str:
    """The guide in `llguidance`'s own JSON form, which executors understand.

    Args:
        guide: Checked by `gateway.guide_checks.check_guide`.
    """
    match guide.kind:
        case GuideKind.JSON_SCHEMA:
            return llguidance.LLMatcher.grammar_from_json_schema(guide.text, {"whitespace_pattern": _WHITESPACE})
        case GuideKind.REGEX:
            return llguidance.LLMatcher.grammar_from_regex(guide.text)
        case GuideKind.CHOICE:
            # One terminal, so that all of them are looked for at once.
            return _from_lark(f"start: CHOICE\nCHOICE: {' | '.join(map(json.dumps, guide.choices))}")
        case _:
            return _from_lark(guide.text)


def _can_end(grammar: str) -> bool:
    schema = json.loads(grammar)["grammars"][0].get("json_schema")
    return schema is None or can_end(schema)


def _from_lark(text: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": text}]})


class GuideCompiler:
    """Says of grammars whether a model could follow them. Takes as long, and as much memory, as they do.

    Args:
        tokenizer: The model's, as the package `tokenizers` writes it to tokenizer.json.
        eos_token_ids: Tokens that end a sequence.

    Raises:
        TokenizerError: The tokenizer is of a kind that guides can't read.
    """

    def __init__(self, tokenizer: str, eos_token_ids: Sequence[int]) -> None:
        try:
            self._tokenizer = llguidance.LLTokenizer(tokenizer, eos_token=list(eos_token_ids))
        except ValueError as error:
            raise TokenizerError(f"the model's tokenizer is of a kind that guides can't read: {error}") from error

    def refusal(self, grammar: str) -> str | None:
        """What is wrong with a grammar; None: nothing."""
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, limits=LIMITS, log_level=0)
        if not matcher.is_error():
            # Much is compiled only where there is a choice, which is behind what every answer begins with.
            begins = any(matcher.compute_bitmask())
            matcher.consume_tokens(matcher.compute_ff_tokens())
            begins = begins and any(matcher.compute_bitmask())
            if not matcher.is_error():
                if not begins:
                    return "the model has no token that such an answer could begin with"
                return (
                    None if _can_end(grammar) else "no document is like that: each would hold another, without an end"
                )
        reason = " ".join(matcher.get_error().split())
        return "no text is like that: it can't be satisfied" if reason.startswith(_EMPTY) else reason
