"""The life of every request, as the core's events tell it: those that are here, and the last ones that have ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from kvmanager.events import Event, EventKind
from kvmanager.request import FinishReason, PrefixMatchEnd, Request
from kvmanager.spec import RequestSpec
from services.kvmanager.chunks import Chunk, ChunksUnderWay

MAX_ENDED = 1000
MAX_DECISIONS = 256
_KEPT_AT_EACH_END = 64
"""Of a life that is longer, the first and the last decisions are kept whatever they are."""
_SLACK = 64
"""A life may grow by so much before it is shortened again, which costs a look at each decision."""

Find = Callable[[Hashable], "Request | None"]
"""Finds a request that has not ended, or ends at this moment."""

Name = tuple[str, str]
"""Tenant and request id."""


@dataclass(slots=True)
class Preemption:
    """A preemption, and whose request it made room for."""

    event: Event
    beneficiary: Name | None


Decision = Event | Chunk | Preemption


@dataclass(slots=True)
class Outcome:
    """What is known of a request that has ended.

    Attributes:
        finished: why each of its sequences ended that has.
        error: why it ended otherwise.
    """

    how: str
    error: str
    finished: list[FinishReason]
    computed_tokens: int
    cached_tokens: int
    output_tokens: int
    max_tokens: int
    preemptions: int
    match_end: PrefixMatchEnd | None
    time: float


class Timeline:
    """One request's life.

    Attributes:
        decisions: in order of time; `left_out` more are not kept.
        executor: where it was admitted last.
        outcome: None while it has not ended.
    """

    __slots__ = (
        "arrived",
        "decisions",
        "executor",
        "handle",
        "left_out",
        "name",
        "outcome",
        "priority",
        "prompt_tokens",
    )

    def __init__(self, handle: Hashable, name: Name, prompt_tokens: int, priority: int) -> None:
        self.handle = handle
        self.name = name
        self.prompt_tokens = prompt_tokens
        self.priority = priority
        self.arrived = 0.0
        self.executor = ""
        self.decisions: list[Decision] = []
        self.left_out = 0
        self.outcome: Outcome | None = None

    def add(self, decision: Decision) -> None:
        self.decisions.append(decision)
        if len(self.decisions) > MAX_DECISIONS + _SLACK:
            self.shorten()

    def shorten(self) -> None:
        """Leaves chunks in the middle out, and if that is not enough whatever else is there, the oldest first."""
        num_excess = len(self.decisions) - MAX_DECISIONS
        if num_excess <= 0:
            return
        middle = range(_KEPT_AT_EACH_END, len(self.decisions) - _KEPT_AT_EACH_END)
        chunks = [index for index in middle if isinstance(self.decisions[index], Chunk)]
        others = [index for index in middle if not isinstance(self.decisions[index], Chunk)]
        left_out = set([*chunks, *others][:num_excess])
        self.decisions = [each for index, each in enumerate(self.decisions) if index not in left_out]
        self.left_out += num_excess


class Timelines:
    """Listens to the core.

    Attributes:
        find: finds the core's requests; to be set before the first one.
    """

    def __init__(self) -> None:
        self.find: Find = lambda handle: None
        self._live: dict[Hashable, Timeline] = {}
        self._ended: deque[Timeline] = deque()
        self._by_name: dict[Name, Timeline] = {}
        self._chunks = ChunksUnderWay[Hashable]()

    def begin(self, spec: RequestSpec, request_id: str) -> None:
        """A request is about to be submitted."""
        name = spec.tenant, request_id
        self._live.setdefault(spec.handle, Timeline(spec.handle, name, len(spec.prompt_token_ids), spec.priority))

    def discard(self, handle: Hashable) -> None:
        """It was refused."""
        timeline = self._live.get(handle)
        if timeline is not None and not timeline.decisions:
            del self._live[handle]

    # Looking in

    def get(self, name: Name) -> Timeline | None:
        """A request's life by its tenant and id; the last one's, where an id was used again."""
        return self._by_name.get(name)

    def of_any_tenant(self, request_id: str) -> Timeline | None:
        """The life of whoever's request of this id came last. Linear in requests."""
        found = [each for each in self._by_name.values() if each.name[1] == request_id]
        return max(found, key=lambda each: each.arrived, default=None)

    @property
    def live(self) -> Iterator[Timeline]:
        """Those that have not ended, in order of arrival."""
        return iter(self._live.values())

    @property
    def ended(self) -> Iterator[Timeline]:
        """The last ones that have ended, the newest first."""
        return reversed(self._ended)

    # What the core tells

    def on_event(self, event: Event) -> None:
        """Takes note of one decision."""
        kind = event.kind
        if kind is EventKind.STEP_DONE:
            self._chunks.done(event)
            return
        timeline = self._live.get(event.handle)
        if timeline is None:
            return
        if kind is EventKind.PREFILL:
            if (chunk := self._chunks.add(event.handle, event)) is not None:
                timeline.add(chunk)
        elif kind is EventKind.PREEMPTED:
            self._chunks.forget(event.handle)
            other = None if event.other is None else self._live.get(event.other)
            timeline.add(Preemption(event, None if other is None else other.name))
        else:
            timeline.add(event)
            if kind is EventKind.QUEUED:
                timeline.arrived = event.time
                self._by_name[timeline.name] = timeline
            elif kind is EventKind.ADMITTED:
                timeline.executor = event.executor
            elif kind is EventKind.FINISHED:
                self._end(timeline, event)

    def _end(self, timeline: Timeline, event: Event) -> None:
        self._chunks.forget(event.handle)
        request = self.find(event.handle)
        assert request is not None
        timeline.outcome = _outcome(request, event)
        timeline.shorten()
        del self._live[event.handle]
        self._ended.append(timeline)
        if len(self._ended) > MAX_ENDED:
            oldest = self._ended.popleft()
            if self._by_name.get(oldest.name) is oldest:
                del self._by_name[oldest.name]


def _outcome(request: Request, event: Event) -> Outcome:
    prompt_tokens = len(request.spec.prompt_token_ids)
    return Outcome(
        event.detail,
        event.cause,
        [each.finish_reason for each in request.sequences if each.finish_reason is not None],
        computed_tokens(request),
        request.num_cached_tokens or 0,
        event.value,
        request.max_length - prompt_tokens,
        request.times.preemptions,
        request.prefix_match_end,
        event.time,
    )


def computed_tokens(request: Request) -> int:
    """How much of the prompt the request has in memory, or in steps under way; all of it once it has a token."""
    prompt_tokens = len(request.spec.prompt_token_ids)
    if request.times.prefill is not None:
        return prompt_tokens
    return min(max((each.num_computed for each in request.sequences), default=0), prompt_tokens)
