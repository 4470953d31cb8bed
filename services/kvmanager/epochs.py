"""Epochs for executors, and what they say about who leads."""

from __future__ import annotations

import logging
from typing import NoReturn, Protocol

from octavo.v1 import executor_pb2
from services.state.leadership import NotLeader
from services.state.store import StateUnavailable

log = logging.getLogger(__name__)


class Deposed(Exception):
    """Another KV manager leads; the message says how that is known."""


class Lead(Protocol):
    """The right to a group's executors, as far as this process knows."""

    async def next_epoch(self, above: int) -> int:
        """A number above `above` and above every one given out for this group before.

        Raises:
            NotLeader: another KV manager leads.
            StateUnavailable: nobody knows.
        """

    def depose(self, reason: str) -> None:
        """Another KV manager leads: executors must not be taken from it."""


class Epochs:
    """Gives each connection to an executor an epoch above all that the executor has seen, while this KV manager leads.

    Args:
        lead: whether it does.
    """

    def __init__(self, lead: Lead) -> None:
        self._lead = lead

    async def next(self, description: executor_pb2.DescribeResponse, ours: int | None) -> int:
        """An epoch for an executor that describes itself so.

        Args:
            ours: the last one that it has taken on from this KV manager.

        Raises:
            Deposed: the store says so; or it is away, and somebody else has given this executor an epoch since we did.
        """
        try:
            return await self._lead.next_epoch(description.epoch)
        except NotLeader:
            self._depose("the state store says so")
        except StateUnavailable as error:
            if ours is not None and description.epoch > ours:
                self._depose(f"the executor has seen epoch {description.epoch}, and {ours} was ours")
            log.warning("state store is away; the epoch is the executor's", extra={"error": str(error)})
            return int(description.epoch) + 1

    def _depose(self, how: str) -> NoReturn:
        self._lead.depose(how)
        raise Deposed(f"another KV manager leads: {how}")
