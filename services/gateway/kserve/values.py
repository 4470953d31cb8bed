"""Values of settings as clients write them: as elements of tensors, as parameters, in JSON, and there as text, too."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gateway.request import EarlyStopping, Guide, GuideKind
from services.gateway.kserve.errors import invalid

T = TypeVar("T")

_INT32 = range(-(2**31), 2**31)
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_ENDINGS = {False: EarlyStopping.HEURISTIC, True: EarlyStopping.FIRST, "never": EarlyStopping.NEVER}
_GUIDES = {
    "json": GuideKind.JSON_SCHEMA,
    "regex": GuideKind.REGEX,
    "grammar": GuideKind.GRAMMAR,
    "choice": GuideKind.CHOICE,
}


def as_text(name: str, value: Any) -> str:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise invalid(name, "is not valid UTF-8") from error
    if not isinstance(value, str):
        raise _wrong(name, "text", value)
    return value


def as_integer(name: str, value: Any) -> int:
    number = _parsed(name, value, int, "a whole number")
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if not isinstance(number, int):
        raise _wrong(name, "a whole number", value)
    return number


def as_int32(name: str, value: Any) -> int:
    number = as_integer(name, value)
    if number not in _INT32:
        raise invalid(name, f"must be a number of 32 bits, is {number}")
    return number


def as_top_k(name: str, value: Any) -> int:
    """-1 keeps all tokens, as with vLLM."""
    top_k = as_int32(name, value)
    return 0 if top_k == -1 else top_k


def as_beam_width(name: str, value: Any) -> int | None:
    """1 is no beam search, as with TensorRT-LLM."""
    width = as_int32(name, value)
    return None if width == 1 else width


def as_number(name: str, value: Any) -> float:
    number = _parsed(name, value, float, "a number")
    if not isinstance(number, (int, float)):
        raise _wrong(name, "a number", value)
    try:
        return float(number)
    except OverflowError as error:
        raise invalid(name, "is too large a number") from error


def as_flag(name: str, value: Any) -> bool:
    if isinstance(value, (str, bytes)):
        value = _FLAGS.get(as_text(name, value).lower(), value)
    if not isinstance(value, bool):
        raise _wrong(name, "true or false", value)
    return value


def as_ending(name: str, value: Any) -> EarlyStopping:
    """True, false or "never", as with `transformers` and vLLM."""
    if isinstance(value, (str, bytes)) and as_text(name, value) == "never":
        return EarlyStopping.NEVER
    return _ENDINGS[as_flag(name, value)]


def as_texts(name: str, value: Any) -> tuple[str, ...]:
    """One text or several. Empty ones, with which some clients say that there are none, are left out."""
    texts = value if isinstance(value, list) else [value]
    return tuple(text for text in (as_text(name, each) for each in texts) if text)


def as_int32s(name: str, value: Any) -> tuple[int, ...]:
    return tuple(as_int32(name, each) for each in (value if isinstance(value, list) else [value]))


def as_biases(name: str, value: Any) -> dict[int, float]:
    return {as_int32(name, key): as_number(f"{name}[{key}]", bias) for key, bias in as_object(name, value).items()}


def as_guide(name: str, value: Any) -> Guide:
    """An object with one of json, regex, grammar and choice, as with vLLM."""
    given = {key: each for key, each in as_object(name, value).items() if each is not None}
    if len(given) != 1 or not given.keys() <= _GUIDES.keys():
        raise invalid(name, f"must have one of {', '.join(_GUIDES)}, has {', '.join(map(repr, given)) or 'none'}")
    ((key, content),) = given.items()
    kind, place = _GUIDES[key], f"{name}.{key}"
    if kind is GuideKind.CHOICE:
        choices = content if isinstance(content, list) else [content]
        return Guide(kind, choices=tuple(as_text(place, each) for each in choices))
    if kind is GuideKind.JSON_SCHEMA and isinstance(content, dict):
        return Guide(kind, json.dumps(content))
    return Guide(kind, as_text(place, content))


def as_object(name: str, value: Any) -> Mapping[str, Any]:
    """A JSON object, as it is or as text."""
    if isinstance(value, (str, bytes)):
        try:
            value = json.loads(as_text(name, value))
        except (ValueError, RecursionError) as error:
            raise invalid(name, f"is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise _wrong(name, "a JSON object", value)
    return value


def _parsed(name: str, value: Any, parse: Callable[[str], T], what: str) -> T | Any:
    """A number that was given as text. A flag is none."""
    if isinstance(value, bool):
        raise _wrong(name, what, value)
    if not isinstance(value, (str, bytes)):
        return value
    try:
        return parse(as_text(name, value))
    except ValueError:
        raise _wrong(name, what, value) from None


def _wrong(name: str, what: str, value: Any) -> Exception:
    shown = repr(value)
    return invalid(name, f"must be {what}, is {shown if len(shown) <= 80 else shown[:77] + '...'}")
