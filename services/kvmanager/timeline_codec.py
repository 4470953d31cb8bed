"""Requests and their lives: to the wire."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from kvmanager.events import Event, EventKind
from kvmanager.request import PrefixMatchEnd, Request, RequestState
from octavo.v1 import monitoring_pb2
from services.kvmanager import reasons
from services.kvmanager.chunks import Chunk
from services.kvmanager.timelines import Decision, Outcome, Preemption, Timeline, computed_tokens
from services.rpc.columns import pack_int32

_STATES = {
    RequestState.WAITING: monitoring_pb2.REQUEST_STATE_WAITING,
    RequestState.PREEMPTED: monitoring_pb2.REQUEST_STATE_WAITING,
    RequestState.RUNNING: monitoring_pb2.REQUEST_STATE_RUNNING,
    RequestState.SWAPPED: monitoring_pb2.REQUEST_STATE_SWAPPED,
}

_KINDS = {
    EventKind.QUEUED: monitoring_pb2.DECISION_KIND_QUEUED,
    EventKind.WAITED: monitoring_pb2.DECISION_KIND_WAITED,
    EventKind.ADMITTED: monitoring_pb2.DECISION_KIND_ADMITTED,
    EventKind.PREFILL: monitoring_pb2.DECISION_KIND_PREFILL,
    EventKind.FIRST_TOKEN: monitoring_pb2.DECISION_KIND_FIRST_TOKEN,
    EventKind.PREEMPTED: monitoring_pb2.DECISION_KIND_PREEMPTED,
    EventKind.FINISHED: monitoring_pb2.DECISION_KIND_FINISHED,
}


class TimelineEncoder:
    """Encodes for one who looks.

    Args:
        epoch_offset: seconds to add to the core's clock to get the time since 1970.
        tenant: who is told; empty: the operator.
    """

    def __init__(self, epoch_offset: float, tenant: str) -> None:
        self._offset = epoch_offset
        self._tenant = tenant

    def request(
        self, timeline: Timeline, request: Request | None, include_blocks: bool = False
    ) -> monitoring_pb2.RequestView:
        """A request as it is, or was at its end.

        Args:
            request: None: it has ended.
        """
        tenant, request_id = timeline.name
        view = monitoring_pb2.RequestView(
            request_id=request_id,
            tenant=tenant,
            executor=timeline.executor,
            arrived=self._timestamp(timeline.arrived),
            prompt_tokens=timeline.prompt_tokens,
            priority=timeline.priority,
        )
        if timeline.outcome is not None:
            self._add_outcome(view, timeline.outcome)
        elif request is not None:
            self._add_state(view, request, include_blocks)
        return view

    def _add_state(self, view: monitoring_pb2.RequestView, request: Request, include_blocks: bool) -> None:
        view.state = _STATES[request.state]
        view.reason = reasons.of_state(request, self._tenant)
        view.cached_tokens = request.num_cached_tokens or 0
        view.computed_tokens = computed_tokens(request)
        view.output_tokens = sum(each.num_output for each in request.sequences)
        view.max_tokens = request.max_length - len(request.spec.prompt_token_ids)
        view.preemptions = request.times.preemptions
        for sequence in request.sequences:
            shown = view.sequences.add(num_tokens=len(sequence.token_ids))
            if include_blocks:
                shown.block_ids = pack_int32([block.block_id for block in sequence.table or sequence.host_table])

    def _add_outcome(self, view: monitoring_pb2.RequestView, outcome: Outcome) -> None:
        view.state = monitoring_pb2.REQUEST_STATE_ENDED
        view.reason = reasons.of_end(outcome)
        view.cached_tokens = outcome.cached_tokens
        view.computed_tokens = outcome.computed_tokens
        view.output_tokens = outcome.output_tokens
        view.max_tokens = outcome.max_tokens
        view.preemptions = outcome.preemptions
        view.ended.CopyFrom(self._timestamp(outcome.time))

    def timeline(self, timeline: Timeline, request: Request | None) -> monitoring_pb2.Timeline:
        """A request with all that was decided about it."""
        timeline.shorten()
        message = monitoring_pb2.Timeline(request=self.request(timeline, request), decisions_left_out=timeline.left_out)
        match_end = request.prefix_match_end if request is not None else None
        if timeline.outcome is not None:
            match_end = timeline.outcome.match_end
        admitted = False
        for decision in timeline.decisions:
            event = decision if isinstance(decision, Event) else decision.event
            encoded = message.decisions.add(kind=_KINDS[event.kind], executor=event.executor)
            if not self._tenant:  # how many steps there are tells what others have computed
                encoded.step = event.step
            encoded.at.CopyFrom(_duration(event.time - timeline.arrived))
            encoded.tokens = decision.num_tokens if isinstance(decision, Chunk) else event.value
            if isinstance(decision, Chunk) and decision.until is not None:
                encoded.until.CopyFrom(_duration(decision.until - timeline.arrived))
            encoded.reason = self._reason(decision, event, timeline, None if admitted else match_end, not admitted)
            admitted |= event.kind is EventKind.ADMITTED
        return message

    def _reason(
        self, decision: Decision, event: Event, timeline: Timeline, match_end: PrefixMatchEnd | None, first: bool
    ) -> str:
        if isinstance(decision, Preemption):
            return reasons.of_preemption(decision, self._tenant)
        match event.kind:
            case EventKind.QUEUED:
                return reasons.of_queueing(event)
            case EventKind.WAITED:
                return reasons.of_waiting(event.detail, event.amount, self._tenant)
            case EventKind.ADMITTED:
                return reasons.of_admission(match_end, first)
            case EventKind.FINISHED:
                assert timeline.outcome is not None
                return reasons.of_end(timeline.outcome)
            case _:
                return ""

    def _timestamp(self, time: float) -> Timestamp:
        timestamp = Timestamp()
        timestamp.FromMicroseconds(round((time + self._offset) * 1e6))
        return timestamp


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromMicroseconds(round(seconds * 1e6))
    return duration
