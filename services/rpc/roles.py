"""Who is who between the services: each certificate names a role, and each inner service has roles that may call it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, get_args

Role = Literal["gateway", "kvmanager", "executor", "operator"]
"""The three services, and a person or a program that looks into them."""

ROLES: tuple[Role, ...] = get_args(Role)

CALLERS: Mapping[Role, tuple[Role, ...]] = {
    "kvmanager": ("gateway", "kvmanager", "operator"),
    "executor": ("kvmanager",),
}
"""Who may call each inner service. Health and reflection are anybody's who has a certificate."""

_DOMAIN = "octavo.internal"


def role_name(role: Role) -> str:
    """The DNS name in a certificate (subject alternative name) that gives whoever holds it this role.

    It is what a caller expects of a service's certificate too, by whatever host name or address it is called: replicas
    behind one name are found by their addresses, which no certificate could list.
    """
    return f"{role}.{_DOMAIN}"


def roles_in(names: Collection[str]) -> list[Role]:
    """The roles that a certificate with these names gives."""
    return [role for role in ROLES if role_name(role) in names]
