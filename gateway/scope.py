"""Scopes of the prefix cache: who may reuse whose keys and values.

A scope becomes the salt of every block identity computed under it, so blocks of different scopes never match.
"""

DEFAULT_TENANT = "default"


def tenant_salt(tenant: str) -> bytes:
    """The salt of everything that belongs to one tenant.

    The parts are framed with their lengths, so that no two different scopes give the same bytes.
    """
    return _frame(b"tenant") + _frame(tenant.encode())


def _frame(part: bytes) -> bytes:
    return len(part).to_bytes(4, "little") + part
