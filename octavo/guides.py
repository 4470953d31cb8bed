"""What an answer must look like, from plain Python values."""

import json
from collections.abc import Mapping
from typing import Any

from octavo.v1 import common_pb2

_KINDS = ("json_schema", "regex", "grammar", "choice")


def take_guide(sampling: dict[str, Any]) -> common_pb2.Guide | None:
    """Takes what states a guide out of sampling parameters.

    Args:
        sampling: May have one of ``json_schema`` (JSON text, a mapping, or what has a ``model_json_schema`` method, as
            a pydantic model has), ``regex``, ``grammar`` (texts), ``choice`` (several texts) and ``guide`` (a message),
            which is removed.

    Raises:
        TypeError: A JSON schema or a choice is no such thing.
        ValueError: There are several.
    """
    given = {name: sampling.pop(name) for name in ("guide", *_KINDS) if name in sampling}
    if len(given) > 1:
        raise ValueError(f"{', '.join(given)}: an answer can have one guide only")
    for name, value in given.items():
        if name == "guide":
            guide: common_pb2.Guide = value
            return guide
        return _guide(name, value)
    return None


def _guide(kind: str, value: Any) -> common_pb2.Guide:
    if kind == "json_schema":
        return common_pb2.Guide(json_schema=_schema_text(value))
    if kind == "regex":
        return common_pb2.Guide(regex=value)
    if kind == "grammar":
        return common_pb2.Guide(grammar=value)
    if isinstance(value, str):
        raise TypeError(f"choice must be several texts, not one: {value!r}")
    return common_pb2.Guide(choice=common_pb2.ChoiceGuide(choices=value))


def _schema_text(schema: Any) -> str:
    if isinstance(schema, str):
        return schema
    if not isinstance(schema, Mapping):
        if not hasattr(schema, "model_json_schema"):
            raise TypeError(f"json_schema must be JSON, a mapping or a pydantic model, not {schema!r}")
        schema = schema.model_json_schema()
    return json.dumps(schema)
