"""Tenants as JSON, which the tenants file and Redis hold. Keys are there as hashes only."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from gateway.api_keys import ApiKey
from gateway.scope import ScopeLevel
from gateway.tenants import Tenant

# By annotation: what JSON may hold there.
_NUMBERS: dict[Any, tuple[type, ...]] = {"int": (int,), "float": (int, float)}


class BadRecord(ValueError):
    """This is no tenant's record."""


def encode_tenant(tenant: Tenant) -> dict[str, Any]:
    """A tenant as plain data, without its name."""
    record: dict[str, Any] = {each.name: getattr(tenant, each.name) for each in fields(tenant) if each.name != "name"}
    return record | {"keys": [_encode_key(key) for key in tenant.keys], "namespaces": sorted(tenant.namespaces)}


def decode_tenant(name: str, record: Any) -> Tenant:
    """Reads what `encode_tenant` gave. What is absent takes its default.

    Raises:
        BadRecord: It is none.
    """
    try:
        keys = tuple(_decode_key(key) for key in record.get("keys", ()))
        values = record | {"keys": keys, "namespaces": frozenset(record.get("namespaces", ()))}
        for each in fields(Tenant):
            if each.type in _NUMBERS and type(values.get(each.name, 0)) not in _NUMBERS[each.type]:
                raise BadRecord(f"{each.name} is no {each.type}")
        return Tenant(name, **values)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadRecord(f"tenant {name!r}: {error}") from error


def dump_tenant(tenant: Tenant) -> str:
    """A tenant as JSON; equal ones as equal text."""
    return json.dumps(encode_tenant(tenant), sort_keys=True)


def load_tenant(name: str, text: str | bytes) -> Tenant:
    """Reads what `dump_tenant` gave.

    Raises:
        BadRecord: It is no such text.
    """
    try:
        record = json.loads(text)
    except ValueError as error:
        raise BadRecord(f"tenant {name!r}: {error}") from error
    return decode_tenant(name, record)


def _encode_key(key: ApiKey) -> dict[str, Any]:
    return {
        "key_id": key.key_id,
        "secret_sha256": key.secret_hash.hex(),
        "app": key.app,
        "widest_scope": key.widest_scope.name.lower(),
        "created_at": key.created_at,
        "revoked_at": key.revoked_at,
    }


def _decode_key(record: Any) -> ApiKey:
    return ApiKey(
        key_id=record["key_id"],
        secret_hash=bytes.fromhex(record["secret_sha256"]),
        app=record["app"],
        widest_scope=ScopeLevel[record["widest_scope"].upper()],
        created_at=record.get("created_at", 0),
        revoked_at=record.get("revoked_at"),
    )
