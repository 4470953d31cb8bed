"""Requests of all groups, as one list."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.v1 import monitoring_pb2
from services.gateway.monitoring.groups import Group

RequestView = monitoring_pb2.RequestView


def one_list(found: Sequence[tuple[Group, Sequence[RequestView]]], num_ended: int) -> list[RequestView]:
    """In order of arrival; of those that have ended, so many that ended last."""
    views = [_named(group, view) for group, views in found for view in views]
    ended = [view for view in views if view.state == monitoring_pb2.REQUEST_STATE_ENDED]
    ended.sort(key=lambda view: view.ended.ToNanoseconds())
    live = [view for view in views if view.state != monitoring_pb2.REQUEST_STATE_ENDED]
    return sorted([*live, *ended[max(len(ended) - num_ended, 0) :]], key=_arrival)


def latest(found: Sequence[tuple[Group, monitoring_pb2.Timeline]]) -> monitoring_pb2.Timeline:
    """A request that went from one group to another has a timeline in each: the one where it came last."""
    group, timeline = max(found, key=lambda each: _arrival(each[1].request))
    _named(group, timeline.request)
    for decision in timeline.decisions:
        decision.executor = group.named(decision.executor)
    return timeline


def _named(group: Group, view: RequestView) -> RequestView:
    view.executor = group.named(view.executor)
    return view


def _arrival(view: RequestView) -> int:
    return view.arrived.ToNanoseconds()
