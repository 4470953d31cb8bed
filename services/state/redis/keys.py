"""Names of keys: all under one prefix with the schema's version, each with the hash tag of what it belongs to.

Names that people chose are quoted, so that no two of them make one key and none makes a hash tag of its own.
"""

from __future__ import annotations

import hashlib
from urllib.parse import quote

PREFIX = "octavo:"
SCHEMA = 1
"""Rises when keys change so that an older version of the program can't work with them."""

MAX_NAME = 200
"""A longer name, quoted, is replaced by its hash."""


def key(tag: str, *parts: str) -> str:
    """``octavo:1:{TAG}:PART:PART``."""
    return f"{PREFIX}{SCHEMA}:{{{tag}}}:{':'.join(parts)}"


def quoted(name: str) -> str:
    """A name as part of a key: readable, without braces or blanks, at most `MAX_NAME` characters long."""
    text = quote(name, safe="/:,@+")
    return text if len(text) <= MAX_NAME else f"%sha256:{hashlib.sha256(name.encode()).hexdigest()}"


def framed(*names: str) -> str:
    """A hash that no other sequence of names has, however they are cut."""
    digest = hashlib.sha256()
    for name in names:
        data = name.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()
