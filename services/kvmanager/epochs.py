"""Epochs for executors, and what they say about who leads."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NoReturn

from octavo.v1 import executor_pb2
from services.state.executor_registry import LEASE_SECONDS
from services.state.leadership import Holder, Leadership, NotLeader
from services.state.store import StateUnavailable

log = logging.getLogger(__name__)


class Deposed(Exception):
    """Another KV manager leads; the message says how that is known."""


class Epochs:
    """Gives each connection to an executor an epoch above all that the executor has seen, while this KV manager leads.

    Args:
        on_deposed: told why, when another KV manager leads: executors must not be taken from it.
    """

    def __init__(
        self,
        leadership: Leadership,
        group: str,
        holder: Holder,
        on_deposed: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._leadership = leadership
        self._group = group
        self._holder = holder
        self._on_deposed = on_deposed

    async def next(self, description: executor_pb2.DescribeResponse, ours: int | None) -> int:
        """An epoch for an executor that describes itself so.

        Args:
            ours: the last one that it has taken on from this KV manager.

        Raises:
            Deposed: the store says so; or it is away, and somebody else has given this executor an epoch since we did.
        """
        try:
            await self._leadership.lead(self._group, self._holder, LEASE_SECONDS)
            return await self._leadership.next_epoch(self._group, self._holder, above=description.epoch)
        except NotLeader:
            self._depose("the state store says so")
        except StateUnavailable as error:
            if ours is not None and description.epoch > ours:
                self._depose(f"the executor has seen epoch {description.epoch}, and {ours} was ours")
            log.warning("state store is away; the epoch is the executor's", extra={"error": str(error)})
            return int(description.epoch) + 1

    def _depose(self, how: str) -> NoReturn:
        self._on_deposed(how)
        raise Deposed(f"another KV manager leads: {how}")
