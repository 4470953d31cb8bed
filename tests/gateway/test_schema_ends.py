"""Schemas that refer to themselves: some documents end, or none can."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.schema_ends import can_end

A = {"$ref": "#/$defs/a"}


def _required(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}, "required": ["x"]}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "properties": {"x": {"$ref": "#"}}},
        {"type": "array", "items": {"$ref": "#"}},
        {"anyOf": [_required({"$ref": "#"}), {"type": "null"}]},
        _required(A) | {"$defs": {"a": {"oneOf": [_required(A), {"$ref": "#/$defs/b/0"}]}, "b": [{"type": "null"}]}},
        {"type": "array", "prefixItems": [{}, {"$ref": "#"}], "minItems": 1},
        {"type": ["object", "null"], "properties": {"x": {"$ref": "#"}}, "required": ["x"]},
        {"$ref": "#/nowhere"},
        {"$ref": "elsewhere"},
        {"enum": [{"$ref": 7}]},
        {"properties": {"$ref": {"type": "string"}}},
        A | {"$defs": {"a": {"$ref": "#/$defs/c~1d~0"}, "c/d~": {}}},
    ],
)
def test_some_document_ends(schema: dict[str, Any]) -> None:
    assert can_end(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        _required({"$ref": "#"}),
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"type": "array", "prefixItems": [{}, {"$ref": "#"}], "minItems": 2},
        {"anyOf": [_required({"$ref": "#"}), {"type": "array", "items": {"$ref": "#"}, "minItems": 3}]},
        {"allOf": [{}, _required({"$ref": "#"})]},
        _required(A) | {"$defs": {"a": _required({"$ref": "#/$defs/b"}), "b": {"anyOf": [A, _required(A)]}}},
    ],
)
def test_none_can(schema: dict[str, Any]) -> None:
    assert not can_end(schema)


def test_many_ways_are_not_gone_one_by_one() -> None:
    """Each refers to all others, twice."""
    names = [f"d{index}" for index in range(25)]
    everything = {"anyOf": [_required({"$ref": f"#/$defs/{name}"}) for name in names] * 2}
    assert not can_end({"$ref": "#/$defs/d0", "$defs": dict.fromkeys(names, everything)})
