"""One request's way to the KV manager and back, whichever KV manager that is at the moment."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gateway.errors import PositionGap
from gateway.output import FinishReason
from gateway.prepared import PreparedRequest
from octavo.v1 import common_pb2, inference_pb2, kvmanager_pb2
from services.gateway.codec import encode_resumption, encode_submission
from services.gateway.pacer import Pace, Pacer
from services.gateway.received import ReceivedSequence, Update
from services.gateway.token_log import RequestLog


@dataclass(slots=True)
class Delivery:
    """All that there is for one request."""

    progress: inference_pb2.PrefillProgress | None = None
    updates: list[Update] = field(default_factory=list)
    end: kvmanager_pb2.RequestEnd | None = None


class Carrier(Protocol):
    """Has requests computed."""

    def abort(self, abort: kvmanager_pb2.Abort) -> None:
        """Ends a request or one of its sequences."""

    def forget(self, stream: RequestStream) -> None:
        """Nothing more is to be delivered."""


class RequestStream:
    """A request until its end: what it has so far, and what of that nobody has taken yet.

    What comes before it is taken, because the client is slower than the steps or has had its turn, is taken together.
    Each token is delivered once: where it comes again, as after a KV manager was lost, it is dropped.

    Args:
        handle: The request's number, which no other request of this gateway has.
        request: What is asked for.
        trace: That it belongs to.
        pacer: Says whose turn it is.

    Attributes:
        carrier: Who has the request computed now.
        deadline: Its end by the event loop's clock, or None.
        submissions_in_vain: How often it was submitted since something last came for it.
        submitted_before: A KV manager that is gone had it in its queue, or was at it.
        identities: Of its prompt's blocks, where somebody has to choose among prefix caches.
        log: Is told of whatever comes.
        sequences: What it has.
    """

    def __init__(
        self, handle: int, request: PreparedRequest, trace: common_pb2.TraceContext | None, pacer: Pacer
    ) -> None:
        self.handle = handle
        self.request = request
        self.pace = Pace(request.response_interval, looked_through=bool(request.sampling.stop))
        self.carrier: Carrier | None = None
        self.submissions_in_vain = 0
        self.submitted_before = False
        self.identities: Sequence[bytes] = ()
        self.log: RequestLog | None = None
        self.sequences = [ReceivedSequence() for _ in range(request.n)]
        self._loop = asyncio.get_running_loop()
        self.deadline = self._loop.time() + request.timeout_us / 1e6 if request.timeout_us else None
        self._trace = trace
        self._pacer = pacer
        self._delivery: Delivery | None = None
        self._latest: dict[int, Update] = {}
        self._error: Exception | None = None
        self._taker: asyncio.Future[None] | None = None
        self._rests_until = 0.0
        self._waits_for_turn = False
        self._over = False
        self._settled = False

    # To the KV manager

    def submission(self) -> kvmanager_pb2.Submission:
        """The request as it stands: with the tokens that it has, and the time that is left."""
        message = encode_submission(self.request, self.handle, self._trace)
        if self.deadline is not None:
            message.timeout_us = max(1, round((self.deadline - self._loop.time()) * 1e6))
        if self.submitted_before:
            message.resumption.SetInParent()
        # What a backend ranks it keeps to itself until all is there: it starts again.
        if not self.request.ranked_by_backend and (resumption := encode_resumption(self.sequences)) is not None:
            message.resumption.CopyFrom(resumption)
        return message

    @property
    def complete(self) -> bool:
        """Every sequence has ended, whether or not the KV manager has said so."""
        return all(sequence.finish_reason is not None for sequence in self.sequences)

    @property
    def started(self) -> bool:
        """It has a token."""
        return bool(self.sequences[0].token_ids)

    @property
    def settled(self) -> bool:
        """How it ends is known, though perhaps not to its client yet."""
        return self._settled

    def replay(self, updates: Iterable[Update]) -> None:
        """What it was answered before, in order, perhaps with repeats. What comes after a gap is left out."""
        for update in updates:
            if update.position <= len(self.sequences[update.sequence_index].token_ids):
                self.add(update)

    # From the KV manager

    def add_progress(self, progress: inference_pb2.PrefillProgress) -> None:
        """So much of the prompt has been computed."""
        self._news().progress = progress
        self._offer()

    def add(self, update: Update) -> None:
        """A sequence got tokens."""
        try:
            if not self.sequences[update.sequence_index].take(update):
                return
        except PositionGap as gap:
            self.fail(gap)
            return
        self.submissions_in_vain = 0
        if self.log is not None:
            self.log.touch()
        latest = self._latest.get(update.sequence_index)
        if latest is None or not latest.join(update):
            self._latest[update.sequence_index] = update
            self._news().updates.append(update)
        self._offer()

    def end(self, end: kvmanager_pb2.RequestEnd) -> None:
        """The request is over."""
        self._settled = True
        if self.log is not None:
            self.log.end(end)
        self._news().end = end
        self._hand_over()

    def fail(self, error: Exception) -> None:
        """Nothing more will come."""
        self._settled = True
        self._error = error
        self._hand_over()

    def _news(self) -> Delivery:
        if self._delivery is None:
            self._delivery = Delivery()
        return self._delivery

    def _offer(self) -> None:
        """Hands over what there is, now or when the stream's turn comes."""
        if self._waits_for_turn:
            return
        if self._loop.time() < self._rests_until:
            self._waits_for_turn = True
            self._pacer.call_at(self._rests_until, self._hand_over)
        else:
            self._hand_over()

    def _hand_over(self) -> None:
        self._waits_for_turn = False
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)

    # To the client

    async def next(self) -> Delivery:
        """What has come since the last time, or comes next.

        Raises:
            RpcError: it can't go on.
            PositionGap: tokens were lost.
        """
        while self._error is None and (self._delivery is None or self._waits_for_turn):
            self._taker = self._loop.create_future()
            await self._taker
        if self._error is not None:
            raise self._error
        assert self._delivery is not None
        delivery, self._delivery = self._delivery, None
        self._latest.clear()
        self._over = delivery.end is not None
        if delivery.updates:
            self._rests_until = self._pacer.end_of_turn(self._loop.time(), self.pace)
        return delivery

    def end_sequence(self, sequence_index: int) -> None:
        """One sequence is complete before the KV manager knows."""
        self.sequences[sequence_index].finish_reason = FinishReason.STOP
        if self.log is not None:
            self.log.touch()
        if self.carrier is not None:
            self.carrier.abort(kvmanager_pb2.Abort(handle=self.handle, sequence_index=sequence_index))

    def close(self) -> None:
        """Gives the request up, unless it has ended."""
        if self.carrier is None:
            return
        self.carrier.forget(self)
        if not self._over:
            self.carrier.abort(kvmanager_pb2.Abort(handle=self.handle))
