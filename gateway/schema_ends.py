"""Whether any finite document is valid by a JSON schema that refers to itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def can_end(schema: dict[str, Any]) -> bool:
    """False where each document that is valid would hold another one, without an end.

    A reference is known to end where what it names ends by references that are known to: the least fixed point, as for
    productive symbols of a grammar (Hopcroft and Ullman, "Introduction to Automata Theory", section 4.4). Keywords that
    are not looked at, and references elsewhere, are taken to end. Takes time in proportion to the schema's length times
    the number of references.
    """
    targets = {reference: _target(schema, reference) for reference in set(_references(schema))}
    ending: set[str] = set()
    while True:
        found = {each for each, target in targets.items() if each not in ending and _ends(target, ending, targets)}
        if not found:
            return _ends(schema, ending, targets)
        ending |= found


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        reference = value.get("$ref")
        if isinstance(reference, str):
            yield reference
        for each in value.values():
            yield from _references(each)
    elif isinstance(value, list):
        for each in value:
            yield from _references(each)


def _target(schema: Any, reference: str) -> Any:
    """What a JSON pointer (RFC 6901) names; True, which ends, where it names nothing."""
    if not reference.startswith("#"):
        return True
    value = schema
    for part in reference[1:].split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return True
    return value


def _ends(schema: Any, ending: set[str], targets: dict[str, Any]) -> bool:
    if not isinstance(schema, dict):
        return True

    def end(schemas: Any) -> Iterator[bool]:
        return (_ends(each, ending, targets) for each in schemas) if isinstance(schemas, list) else iter(())

    reference = schema.get("$ref")
    if isinstance(reference, str) and reference in targets and reference not in ending:
        return False
    if not all(end(schema.get("allOf"))):
        return False
    for name in ("anyOf", "oneOf"):
        if schema.get(name) and not any(end(schema[name])):
            return False
    return all(end(_held(schema)))


def _held(schema: dict[str, Any]) -> list[Any]:
    """Schemas of what each valid document holds."""
    if schema.get("type") == "object":
        properties, required = schema.get("properties"), schema.get("required")
        if isinstance(properties, dict) and isinstance(required, list):
            return [properties.get(name, True) for name in required if isinstance(name, str)]
    elif schema.get("type") == "array":
        first, least = schema.get("prefixItems") or [], schema.get("minItems", 0)
        if isinstance(first, list) and isinstance(least, int):
            return [*first[:least], *([schema.get("items", True)] if least > len(first) else [])]
    return []
