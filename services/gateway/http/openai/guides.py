"""What an answer must look like, in the ways in which OpenAI's and vLLM's clients say it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.request import Guide, GuideKind
from services.gateway.http.errors import HttpError
from services.gateway.http.openai.bodies import GenerationBody, ResponseFormat, StructuredOutputs

_ANY_OBJECT = Guide(GuideKind.JSON_SCHEMA, '{"type":"object"}')


def decode_guide(body: GenerationBody) -> tuple[Guide | None, str]:
    """The guide, if there is one, and the field that it came in.

    Raises:
        HttpError: 400: there are several, or one that is not known.
    """
    found = list(_guides(body))
    if len(found) > 1:
        fields = " and ".join(field for field, _ in found)
        raise HttpError(400, f"{found[1][0]}: only one of {fields} can be given", "invalid_argument", found[1][0])
    for field, guide in found:
        return guide, field
    return None, "response_format"


def _guides(body: GenerationBody) -> Iterator[tuple[str, Guide]]:
    if body.response_format is not None:
        yield from _of_response_format(body.response_format)
    if body.structured_outputs is not None:
        yield from _of_structured_outputs(body.structured_outputs)
    if body.guided_json is not None:
        yield "guided_json", _json_schema(body.guided_json, "guided_json")
    if body.guided_regex is not None:
        yield "guided_regex", Guide(GuideKind.REGEX, body.guided_regex)
    if body.guided_choice is not None:
        yield "guided_choice", Guide(GuideKind.CHOICE, choices=tuple(body.guided_choice))
    if body.guided_grammar is not None:
        yield "guided_grammar", Guide(GuideKind.GRAMMAR, body.guided_grammar)


def _of_response_format(wanted: ResponseFormat) -> Iterator[tuple[str, Guide]]:
    match wanted.type:
        case "text":
            pass
        case "json_object":
            yield "response_format", _ANY_OBJECT
        case "json_schema":
            if wanted.json_schema is None or wanted.json_schema.schema is None:
                field = "response_format.json_schema.schema"
                raise HttpError(400, f"{field}: is missing", "invalid_argument", field)
            yield "response_format", _json_schema(wanted.json_schema.schema, "response_format")
        case other:
            message = f"response_format.type: must be text, json_object or json_schema, is {other!r}"
            raise HttpError(400, message, "invalid_argument", "response_format.type")


def _of_structured_outputs(wanted: StructuredOutputs) -> Iterator[tuple[str, Guide]]:
    if wanted.json is not None:
        yield "structured_outputs.json", _json_schema(wanted.json, "structured_outputs.json")
    if wanted.json_object:
        yield "structured_outputs.json_object", _ANY_OBJECT
    if wanted.regex is not None:
        yield "structured_outputs.regex", Guide(GuideKind.REGEX, wanted.regex)
    if wanted.choice is not None:
        yield "structured_outputs.choice", Guide(GuideKind.CHOICE, choices=tuple(wanted.choice))
    if wanted.grammar is not None:
        yield "structured_outputs.grammar", Guide(GuideKind.GRAMMAR, wanted.grammar)


def _json_schema(schema: Any, field: str) -> Guide:
    """vLLM takes a schema also as a text."""
    if isinstance(schema, str):
        return Guide(GuideKind.JSON_SCHEMA, schema)
    try:
        return Guide(GuideKind.JSON_SCHEMA, msgspec.json.encode(schema).decode())
    except RecursionError:
        raise HttpError(400, f"{field}: is nested too deeply", "invalid_argument", field) from None
