"""Which guides a model can follow, and what is said of those that it can't."""

from __future__ import annotations

import json
import re

import pytest
import tokenizers
from llguidance import LLMatcher, LLTokenizer
from tokenizers import models

from gateway.errors import TokenizerError
from gateway.guide_compiler import MAX_WHITESPACE, GuideCompiler, grammar_of
from gateway.request import Guide, GuideKind
from gateway.tokenizer import Tokenizer

SCHEMA, REGEX, GRAMMAR, CHOICE = GuideKind.JSON_SCHEMA, GuideKind.REGEX, GuideKind.GRAMMAR, GuideKind.CHOICE


@pytest.fixture(scope="module", params=["byte_level", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    made: Tokenizer = request.getfixturevalue(request.param)
    return made


def _takes(tokenizer: Tokenizer, guide: Guide, text: str) -> bool:
    """Whether the guide allows the text, byte by byte and to its end."""
    (eos,) = tokenizer.eos_token_ids
    matcher = LLMatcher(LLTokenizer(tokenizer.backend.to_str(), eos_token=[eos]), grammar_of(guide), log_level=0)
    tokens = [*LLTokenizer(tokenizer.backend.to_str(), eos_token=[eos]).tokenize_str(text), eos]
    return matcher.validate_tokens(tokens) == len(tokens)


@pytest.mark.parametrize(
    ("guide", "good", "bad"),
    [
        (Guide(SCHEMA, '{"type": "object"}'), ['{"a": [1, null]}', "{ }"], ["[]", '{"a": 1', "{} "]),
        (
            Guide(SCHEMA, '{"$ref": "#/$defs/a", "$defs": {"a": {"enum": ["x", 3]}}}'),
            ['"x"', "3"],
            ['"y"', "4"],
        ),
        (Guide(SCHEMA, '{"type": "array"}'), ["[1,\n 2]"], ["[1," + " " * (MAX_WHITESPACE + 1) + "2]"]),
        (Guide(REGEX, r"[a-c/]{2}|日本"), ["a/", "日本"], ["a", "abc", "日"]),
        (Guide(GRAMMAR, 'start: "(" start ")" | "x"'), ["((x))"], ["((x)", ")"]),
        (Guide(CHOICE, choices=("yes", "no", "yes, but")), ["yes", "yes, but"], ["y", "yes,", "maybe"]),
        (Guide(CHOICE, choices=('"\\\n\t/ é 🐙 \x7f | start: x',)), ['"\\\n\t/ é 🐙 \x7f | start: x'], ['"']),
    ],
)
def test_what_is_an_answer(tokenizer: Tokenizer, guide: Guide, good: list[str], bad: list[str]) -> None:
    compiler = GuideCompiler(tokenizer.backend.to_str(), tokenizer.eos_token_ids)
    assert compiler.refusal(grammar_of(guide)) is None
    assert all(_takes(tokenizer, guide, text) for text in good)
    assert not any(_takes(tokenizer, guide, text) for text in bad)


@pytest.mark.parametrize(
    ("guide", "message"),
    [
        (
            Guide(SCHEMA, '{"type": "string", "minLength": 5, "maxLength": 2}'),
            "minLength .5. is greater than maxLength",
        ),
        (Guide(SCHEMA, '{"enum": []}'), "Unsatisfiable"),
        (Guide(SCHEMA, '{"allOf": [{"type": "string"}, {"type": "number"}]}'), "Unsatisfiable"),
        (Guide(SCHEMA, '{"$ref": "#"}'), "can't be satisfied"),
        (Guide(SCHEMA, '{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}'), "without an end"),
        (Guide(SCHEMA, '{"type": "strange"}'), "strange"),
        (Guide(SCHEMA, '{"uniqueItems": true}'), "uniqueItems"),
        (Guide(SCHEMA, '{"$ref": "http://example.com/schema.json"}'), "example.com"),
        (Guide(SCHEMA, '{"$ref": "file:///etc/passwd"}'), "etc/passwd"),
        (Guide(REGEX, "(a"), "unclosed group"),
        (Guide(REGEX, r"[^\s\S]"), "can't be satisfied"),
        (Guide(REGEX, "(?=a)b"), "look-around"),
        (Guide(GRAMMAR, "begin: /a/"), "start"),
        (Guide(GRAMMAR, "start: A\nA: /a/ & /b/"), "can't be satisfied"),
        (Guide(GRAMMAR, "start: other"), "other"),
    ],
)
def test_what_is_none(tokenizer: Tokenizer, guide: Guide, message: str) -> None:
    refusal = GuideCompiler(tokenizer.backend.to_str(), tokenizer.eos_token_ids).refusal(grammar_of(guide))
    assert refusal is not None
    assert re.search(message, refusal)


def test_a_grammar_that_is_too_large_by_its_limits(tokenizer: Tokenizer) -> None:
    properties = {f"property {index}": {"type": "string"} for index in range(1300)}
    schema = json.dumps({"type": "object", "properties": properties})
    compiler = GuideCompiler(tokenizer.backend.to_str(), tokenizer.eos_token_ids)
    assert compiler.refusal(grammar_of(Guide(SCHEMA, schema))) is not None


def test_a_tokenizer_that_guides_cannot_read() -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    with pytest.raises(TokenizerError, match="of a kind that guides can't read"):
        GuideCompiler(backend.to_str(), [0])
