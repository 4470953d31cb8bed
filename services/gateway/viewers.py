"""Who looks at what goes on here: the operator, who sees all, or a tenant, which sees its own share."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass

from services.gateway.identity import Callers, bearer_of


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who is looking.

    Attributes:
        tenant: Whose share is shown; None: the operator, who sees all.
    """

    tenant: str | None

    @property
    def is_operator(self) -> bool:
        """All is shown."""
        return self.tenant is None


OPERATOR = Viewer(None)


class Viewers:
    """Tells those who look apart.

    The operator's key is for looking only: as a caller of the model whoever brings it is what `Callers` says.

    Args:
        callers: Tell whose a call is.
        operator_key: Whoever brings it is the operator; None: nobody is, but where the gateway is open to all.
    """

    def __init__(self, callers: Callers, operator_key: str | None) -> None:
        self._callers = callers
        self._operator_hash = None if operator_key is None else _hash(operator_key)

    def identify(self, metadata: Iterable[tuple[str, str | bytes]]) -> Viewer:
        """Who is looking, from a call's metadata.

        Everybody is the operator of a gateway that is open because it has no tenants. Otherwise that is who brings the
        operator's key, as ``authorization: Bearer KEY``. All others are tenants: the one that a trusted proxy states,
        or whose key it is, whichever of the tenant's apps that key belongs to.

        Raises:
            RpcError: UNAUTHENTICATED: neither the operator's key nor a tenant's, or no clear word of the proxy.
                UNAVAILABLE: the tenants are not known yet.
        """
        given = list(metadata)
        if self._is_operator(bearer_of(given)) or self._callers.open_to_all:
            return OPERATOR
        return Viewer(self._callers.identify(given).tenant)

    def _is_operator(self, key: str) -> bool:
        """Takes as long for every key."""
        return self._operator_hash is not None and hmac.compare_digest(self._operator_hash, _hash(key))


def _hash(key: str) -> bytes:
    """Of one length for all keys; what is brought need not be text that can be encoded."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
