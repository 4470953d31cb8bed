"""What the KV manager keeps outside itself. The step loop never waits for it."""

from __future__ import annotations

from typing import Protocol


class StateStore(Protocol):
    """Fencing epochs and the executor registry."""

    async def next_epoch(self, model: str, above: int) -> int:
        """Returns a number higher than `above` and than any before for this model.

        Raises:
            StateUnavailable: the store is away.
        """

    async def register_executor(self, model: str, address: str, incarnation: str) -> None:
        """Notes that an executor serves a model, for `LEASE_SECONDS`. Does nothing while the store is away."""

    async def close(self) -> None:
        """Lets go of connections."""


class StateUnavailable(Exception):
    """The store can't be reached now."""


LEASE_SECONDS = 15
"""A registration that is not renewed is gone after this time."""


def open_store(url: str) -> StateStore:
    """`embedded`, or a Redis URL."""
    if url == "embedded":
        from services.state.embedded import EmbeddedStore

        return EmbeddedStore()
    from services.state.redis import RedisStore

    return RedisStore(url)
