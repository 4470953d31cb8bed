"""Requests that are here and that were, for those who look."""

from __future__ import annotations

import asyncio
from itertools import islice

from kvmanager.manager import KVManager
from octavo.v1 import monitoring_pb2
from services.kvmanager.timeline_codec import TimelineEncoder
from services.kvmanager.timelines import Timelines

SLICE_REQUESTS = 100
"""So many are told of in one go: a millisecond's work."""


class RequestViews:
    """Answers questions about requests.

    Args:
        epoch_offset: seconds to add to the core's clock to get the time since 1970.
    """

    def __init__(self, manager: KVManager, timelines: Timelines, epoch_offset: float) -> None:
        self._manager = manager
        self._timelines = timelines
        self._offset = epoch_offset

    async def list(self, tenant: str, num_ended: int, include_blocks: bool) -> list[monitoring_pb2.RequestView]:
        """Those that have not ended, and so many of the last ones that have, in order of arrival.

        There may be very many, and steps go on meanwhile.

        Args:
            tenant: whose; empty: everybody's, as the operator sees them.
        """
        encoder = TimelineEncoder(self._offset, tenant)
        ended = (each for each in self._timelines.ended if tenant in ("", each.name[0]))
        chosen = list(islice(ended, num_ended))
        chosen += (each for each in self._timelines.live if tenant in ("", each.name[0]))
        chosen.sort(key=lambda each: each.arrived)
        views = []
        for number, each in enumerate(chosen, 1):
            views.append(encoder.request(each, self._manager.requests.get(each.handle), include_blocks))
            if number % SLICE_REQUESTS == 0:
                await asyncio.sleep(0)
        return views

    def timeline(self, tenant: str, request_id: str) -> monitoring_pb2.Timeline | None:
        """One request's life; None where it is not known.

        Args:
            tenant: as of `list`.
        """
        timelines = self._timelines
        found = timelines.get((tenant, request_id)) if tenant else timelines.of_any_tenant(request_id)
        if found is None:
            return None
        request = None if found.outcome is not None else self._manager.requests.get(found.handle)
        return TimelineEncoder(self._offset, tenant).timeline(found, request)
