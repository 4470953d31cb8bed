"""A request's life in phases, out of the decisions about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from octavo.v1 import monitoring_pb2 as pb
from services.cli.output import some

# So many prefill chunks in a row are shown one by one; of more, the first, the last, and how many were between.
_MOST_CHUNKS = 6


class Phase(Enum):
    """What a request does."""

    QUEUE = "queue"
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"


@dataclass(frozen=True)
class Row:
    """Something that was decided, or lasted. Times in seconds since the request arrived.

    Attributes:
        until: None where it takes no time.
        phase: None where it belongs to none.
    """

    at: float
    until: float | None
    phase: Phase | None
    what: str
    step: int = 0


@dataclass(frozen=True)
class Life:
    """A request as people read it.

    Attributes:
        rows: In order of time.
        seconds: In each phase.
        end: When it was over, or the last that is known of it.
    """

    rows: list[Row]
    seconds: dict[Phase, float]
    end: float


def life_of(timeline: pb.Timeline, *, all_chunks: bool = False) -> Life:
    """Phases and rows of a timeline.

    Args:
        all_chunks: Each prefill chunk is a row.
    """
    decisions = list(timeline.decisions)
    spans = list(_phases(timeline))
    end = max((until for _, _, until in spans), default=0.0)
    seconds = dict.fromkeys(Phase, 0.0)
    for phase, at, until in spans:
        seconds[phase] += until - at
    rows = [_row(timeline, each, number) for number, each in enumerate(decisions)]
    rows += [Row(at, until, phase, "decode") for phase, at, until in spans if phase is Phase.DECODE]
    rows.sort(key=lambda row: row.at)  # stable: what was decided at that time comes first
    return Life(rows if all_chunks else _fold_chunks(rows), seconds, end)


def _phases(timeline: pb.Timeline) -> list[tuple[Phase, float, float]]:
    """Phase, begin and end of each, without a gap between them."""
    spans: list[tuple[Phase, float, float]] = []
    phase, since, has_token = Phase.QUEUE, 0.0, False

    def enter(new: Phase, time: float) -> None:
        nonlocal phase, since
        time = max(time, since)  # a chunk may begin before the one before it is done
        if new is not phase:
            if time > since:
                spans.append((phase, since, time))
            phase, since = new, time

    last = 0.0
    for each in timeline.decisions:
        at, until = _seconds(each.at), _until(each)
        last = max(last, at, until or 0.0)
        if each.kind == pb.DECISION_KIND_ADMITTED:
            enter(Phase.DECODE if has_token else Phase.PREFILL, at)
        elif each.kind == pb.DECISION_KIND_PREFILL:
            enter(Phase.PREFILL, at)
            if has_token and until is not None:
                enter(Phase.DECODE, until)
        elif each.kind == pb.DECISION_KIND_FIRST_TOKEN:
            has_token = True
            enter(Phase.DECODE, at)
        elif each.kind == pb.DECISION_KIND_PREEMPTED:
            enter(Phase.PREEMPTED, at)
    if last > since:
        spans.append((phase, since, last))
    return spans


def _row(timeline: pb.Timeline, decision: pb.Decision, number: int) -> Row:
    at, until = _seconds(decision.at), _until(decision)
    phase: Phase | None = None
    if decision.kind in (pb.DECISION_KIND_QUEUED, pb.DECISION_KIND_PREEMPTED, pb.DECISION_KIND_WAITED):
        # It lasts until something else is decided.
        later = (_seconds(each.at) for each in timeline.decisions[number + 1 :] if _ends(decision.kind, each.kind))
        until = next(later, max((_seconds(each.at) for each in timeline.decisions), default=at))
        phase = Phase.PREEMPTED if _was_preempted(timeline.decisions[: number + 1]) else Phase.QUEUE
    elif decision.kind == pb.DECISION_KIND_PREFILL:
        phase = Phase.PREFILL
    return Row(at, until, phase, _words(timeline, decision, number), decision.step)


def _ends(kind: pb.DecisionKind, next_kind: pb.DecisionKind) -> bool:
    over = (pb.DECISION_KIND_ADMITTED, pb.DECISION_KIND_FINISHED)
    return next_kind in over or (kind == pb.DECISION_KIND_WAITED and next_kind == pb.DECISION_KIND_WAITED)


def _was_preempted(decisions: Sequence[pb.Decision]) -> bool:
    """Whether it is preempted after these."""
    kinds = [each.kind for each in decisions]
    kinds = [kind for kind in kinds if kind in (pb.DECISION_KIND_PREEMPTED, pb.DECISION_KIND_ADMITTED)]
    return bool(kinds) and kinds[-1] == pb.DECISION_KIND_PREEMPTED


def _words(timeline: pb.Timeline, decision: pb.Decision, number: int) -> str:
    """What it is, for people."""
    tokens, why = decision.tokens, f": {decision.reason}" if decision.reason else ""
    match decision.kind:
        case pb.DECISION_KIND_QUEUED:
            return f"arrived with {some(timeline.request.prompt_tokens, 'prompt token')}{why}"
        case pb.DECISION_KIND_WAITED:
            return f"not admitted{why}"
        case pb.DECISION_KIND_ADMITTED:
            where = f" on {decision.executor}" if decision.executor else ""
            found = f"{some(tokens, 'token')} from the prefix cache"
            if any(each.kind == decision.kind for each in timeline.decisions[:number]):
                return f"admitted again{where}, {found}"
            return f"admitted{where}, {found}{why}"
        case pb.DECISION_KIND_PREFILL:
            return f"prefill of {some(tokens, 'token')}{why}"
        case pb.DECISION_KIND_FIRST_TOKEN:
            return f"first token{why}"
        case pb.DECISION_KIND_PREEMPTED:
            return f"preempted{why}"
        case pb.DECISION_KIND_FINISHED:
            return f"finished with {some(tokens, 'output token')}{why}"
    return decision.reason


def _fold_chunks(rows: list[Row]) -> list[Row]:
    """Of many prefill chunks in a row, the first and the last, and the others as one."""
    folded: list[Row] = []
    place = 0
    while place < len(rows):
        end = place
        while end < len(rows) and rows[end].what.startswith("prefill"):
            end += 1
        chunks = rows[place:end]
        if len(chunks) > _MOST_CHUNKS:
            between = chunks[1:-1]
            until = max(row.until or row.at for row in between)
            folded += [chunks[0], Row(between[0].at, until, Phase.PREFILL, f"{len(between)} more chunks"), chunks[-1]]
        else:
            folded += chunks
        folded += rows[end : end + 1]
        place = end + 1
    return folded


def _seconds(duration: object) -> float:
    return duration.seconds + duration.nanos / 1e9  # type: ignore[attr-defined, no-any-return]


def _until(decision: pb.Decision) -> float | None:
    return _seconds(decision.until) if decision.HasField("until") else None
