"""API keys: ``octavo_<key id>_<secret>``.

The id says which key it is and may be shown; the secret is 256 random bits, known only to whoever was given the key.
What is stored is its SHA-256. A slow hash, as passwords need, would protect nothing here: it makes guessing expensive
where there is little to guess, and nobody guesses 256 random bits; and it would cost every call its time.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass

from gateway.scope import DEFAULT_NAME, ScopeLevel

ID_BYTES = 8
SECRET_BYTES = 32

_KEY = re.compile(r"octavo_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_NO_HASH = bytes(hashlib.sha256().digest_size)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is known of a key.

    Attributes:
        key_id: Names the key.
        secret_hash: SHA-256 of its secret.
        app: Which of the tenant's applications has it.
        widest_scope: The widest cache scope that it may ask for. SHARED: whatever the tenant may.
        created_at: Seconds since 1970.
        revoked_at: Likewise. None: it is valid.
    """

    key_id: str
    secret_hash: bytes
    app: str = DEFAULT_NAME
    widest_scope: ScopeLevel = ScopeLevel.SHARED
    created_at: int = 0
    revoked_at: int | None = None

    def __post_init__(self) -> None:
        if len(self.secret_hash) != len(_NO_HASH):
            raise ValueError(f"key {self.key_id}: the hash of its secret must have {len(_NO_HASH)} bytes")


def new_key(random_bits: Callable[[int], int]) -> tuple[str, str, bytes]:
    """A key that nobody has yet.

    Args:
        random_bits: Gives so many bits, from a generator that is fit for secrets.

    Returns:
        The key, its id, and the hash of its secret.
    """
    key_id = random_bits(8 * ID_BYTES).to_bytes(ID_BYTES, "big").hex()
    secret = random_bits(8 * SECRET_BYTES).to_bytes(SECRET_BYTES, "big")
    text = base64.urlsafe_b64encode(secret).rstrip(b"=").decode()
    return f"octavo_{key_id}_{text}", key_id, _hash(text)


def parse_key(text: str) -> tuple[str, str] | None:
    """A key's id and secret; None where the text is no key."""
    match = _KEY.fullmatch(text)
    return (match[1], match[2]) if match else None


def has_secret(key: ApiKey | None, secret: str) -> bool:
    """Whether this is the key's secret. Takes as long for None, which has none."""
    stored = _NO_HASH if key is None else key.secret_hash
    return hmac.compare_digest(stored, _hash(secret)) and key is not None


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
