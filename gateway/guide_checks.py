"""The limits of guides that can be told without compiling them."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from gateway.errors import InvalidArgument
from gateway.request import Guide, GuideKind, SamplingParams
from gateway.validation import require

MAX_BYTES = {GuideKind.JSON_SCHEMA: 64 << 10, GuideKind.REGEX: 16 << 10, GuideKind.GRAMMAR: 64 << 10}
"""Of a guide's text, in UTF-8."""
MAX_CHOICES = 1024
MAX_CHOICE_BYTES = 64 << 10
"""Of all choices together, in UTF-8."""
MAX_DEPTH = 64
"""Objects and arrays inside one another in a JSON schema."""

FIELD = "sampling.guide"


def field_of(guide: Guide) -> str:
    """Which field of the request holds the guide."""
    return FIELD if guide.kind is None else f"{FIELD}.{guide.kind.value}"


def check_guide(sampling: SamplingParams, has_eos: bool) -> None:
    """Checks a request's guide, if it has one, and that nothing goes against it.

    Args:
        has_eos: The model has a token that ends an answer.

    Raises:
        InvalidArgument: Naming the field.
    """
    guide = sampling.guide
    if guide is None:
        return
    require(guide.kind is not None, FIELD, "must be a JSON schema, a regular expression, a grammar or a choice")
    require(has_eos, FIELD, "the model has no end-of-sequence token, so no answer could end where the guide does")
    excluded = {
        "beam_width": sampling.beam_width is not None,
        "ignore_eos": bool(sampling.ignore_eos),
        "min_tokens": bool(sampling.min_tokens),
    }
    for name, given in excluded.items():
        require(not given, f"sampling.{name}", "does not go with a guide, which says where the answer ends")
    if guide.kind is GuideKind.CHOICE:
        _check_choices(guide.choices)
    else:
        _check_text(guide)


def _check_choices(choices: tuple[str, ...]) -> None:
    field = f"{FIELD}.choice.choices"
    require(bool(choices), field, "must not be empty")
    require(len(choices) <= MAX_CHOICES, field, f"must be at most {MAX_CHOICES}, are {len(choices)}")
    for index, choice in enumerate(choices):
        require(bool(choice), f"{field}[{index}]", "must not be empty")
    size = sum(_num_bytes(choice, f"{field}[{index}]") for index, choice in enumerate(choices))
    require(size <= MAX_CHOICE_BYTES, field, f"must have at most {MAX_CHOICE_BYTES} bytes in all, have {size}")


def _check_text(guide: Guide) -> None:
    assert guide.kind is not None
    field, most = field_of(guide), MAX_BYTES[guide.kind]
    require(bool(guide.text), field, "must not be empty")
    size = _num_bytes(guide.text, field)
    require(size <= most, field, f"must have at most {most} bytes, has {size}")
    if guide.kind is GuideKind.JSON_SCHEMA:
        _check_schema(guide.text, field)


def _num_bytes(text: str, field: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:  # half of a pair of UTF-16, as JSON can have it
        raise InvalidArgument(field, "is not valid Unicode") from None


def _check_schema(text: str, field: str) -> None:
    try:
        schema = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise InvalidArgument(field, f"must be at most {MAX_DEPTH} levels deep") from None
    except ValueError as error:
        raise InvalidArgument(field, f"is not JSON: {error}") from None
    require(isinstance(schema, dict), field, 'must be a JSON object, as in {"type": "object"}')
    require(_depth(schema) <= MAX_DEPTH, field, f"must be at most {MAX_DEPTH} levels deep")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _depth(schema: Any) -> int:
    depth, level = 0, [schema]
    while level:
        depth += 1
        level = [
            child
            for value in level
            for child in (value.values() if isinstance(value, dict) else value)
            if isinstance(child, (dict, list))
        ]
    return depth
