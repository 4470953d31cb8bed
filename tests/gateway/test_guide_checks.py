"""What of guides is refused without compiling them: the field named, with the limit."""

import json

import pytest

from gateway.errors import InvalidArgument
from gateway.guide_checks import check_guide
from gateway.request import Guide, GuideKind, SamplingParams

SCHEMA, REGEX, GRAMMAR, CHOICE = GuideKind.JSON_SCHEMA, GuideKind.REGEX, GuideKind.GRAMMAR, GuideKind.CHOICE


def _nested(levels: int) -> str:
    return '{"items": ' * levels + "{}" + "}" * levels


GOOD = [
    Guide(SCHEMA, "{}"),
    Guide(SCHEMA, _nested(63)),
    Guide(SCHEMA, json.dumps({"description": "x" * (65536 - 19)})),
    Guide(REGEX, "x" * 16384),
    Guide(GRAMMAR, "x" * 65536),
    Guide(CHOICE, choices=("a",) * 1024),
    Guide(CHOICE, choices=("é" * 32768,)),
]


@pytest.mark.parametrize("guide", GOOD)
def test_up_to_the_limits(guide: Guide) -> None:
    check_guide(SamplingParams(guide=guide), has_eos=True)


@pytest.mark.parametrize(
    ("guide", "field", "message"),
    [
        (Guide(None), "", "must be a JSON schema, a regular expression, a grammar or a choice"),
        (Guide(SCHEMA), ".json_schema", "must not be empty"),
        (Guide(SCHEMA, "{"), ".json_schema", "is not JSON"),
        (Guide(SCHEMA, '{"minimum": NaN}'), ".json_schema", "NaN is no number"),
        (Guide(SCHEMA, "true"), ".json_schema", "must be a JSON object"),
        (Guide(SCHEMA, "[]"), ".json_schema", "must be a JSON object"),
        (Guide(SCHEMA, _nested(64)), ".json_schema", "at most 64 levels deep"),
        (Guide(SCHEMA, '{"enum": ' + "[" * 30_000 + "]" * 30_000 + "}"), ".json_schema", "at most 64 levels deep"),
        (Guide(SCHEMA, json.dumps({"description": "x" * (65537 - 19)})), ".json_schema", "at most 65536 .*has 65537"),
        (Guide(REGEX), ".regex", "must not be empty"),
        (Guide(REGEX, "é" * 8193), ".regex", "at most 16384 bytes, has 16386"),
        (Guide(REGEX, "a\ud800"), ".regex", "not valid Unicode"),
        (Guide(CHOICE, choices=("a", "\ud800")), ".choice.choices[1]", "not valid Unicode"),
        (Guide(GRAMMAR), ".grammar", "must not be empty"),
        (Guide(GRAMMAR, "x" * 65537), ".grammar", "at most 65536 bytes, has 65537"),
        (Guide(CHOICE), ".choice.choices", "must not be empty"),
        (Guide(CHOICE, choices=("a", "")), ".choice.choices[1]", "must not be empty"),
        (Guide(CHOICE, choices=("a",) * 1025), ".choice.choices", "at most 1024, are 1025"),
        (Guide(CHOICE, choices=("é" * 32768, "x")), ".choice.choices", "at most 65536 bytes in all, have 65537"),
    ],
)
def test_beyond_them(guide: Guide, field: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as error:
        check_guide(SamplingParams(guide=guide), has_eos=True)
    assert error.value.field == f"sampling.guide{field}"


@pytest.mark.parametrize("excluded", [{"beam_width": 2}, {"ignore_eos": True}, {"min_tokens": 1}])
def test_what_goes_against_a_guide(excluded: dict[str, int]) -> None:
    (name,) = excluded
    with pytest.raises(InvalidArgument, match="does not go with a guide") as error:
        check_guide(SamplingParams(guide=Guide(REGEX, "a"), **excluded), has_eos=True)
    assert error.value.field == f"sampling.{name}"
    check_guide(SamplingParams(**excluded), has_eos=True)


def test_what_asks_for_nothing_of_the_kind_goes_with_it() -> None:
    check_guide(SamplingParams(guide=Guide(REGEX, "a"), ignore_eos=False, min_tokens=0), has_eos=True)


def test_a_model_whose_answers_have_no_end() -> None:
    check_guide(SamplingParams(), has_eos=False)
    with pytest.raises(InvalidArgument, match="no end-of-sequence token"):
        check_guide(SamplingParams(guide=Guide(REGEX, "a")), has_eos=False)
