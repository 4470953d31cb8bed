"""Counts what apps use, and hands it on in batches."""

from __future__ import annotations

import secrets

from gateway.scope import Identity
from services.state.tenants import Usage, UsageBatch, UsageStore


class UsageCounter:
    """What was counted and is not in the store yet. A batch that may have arrived is sent again as it was.

    Args:
        store: Where it goes.
    """

    def __init__(self, store: UsageStore) -> None:
        self._store = store
        self._writer = secrets.token_hex(8)
        self._number = 0
        self._pending: dict[tuple[str, str], Usage] = {}
        self._under_way: UsageBatch | None = None

    def of(self, identity: Identity) -> Usage:
        """Where to count what this app uses now."""
        name = identity.tenant, identity.app
        usage = self._pending.get(name)
        if usage is None:
            usage = self._pending[name] = Usage()
        return usage

    async def hand_on(self) -> None:
        """Adds what was counted to the store.

        Raises:
            StateUnavailable: It will be tried again the next time.
        """
        if self._under_way is None:
            if not self._pending:
                return
            self._number += 1
            self._under_way, self._pending = UsageBatch(self._writer, self._number, self._pending), {}
        await self._store.add(self._under_way)
        self._under_way = None
