"""What the KV manager delivers for one request, until somebody takes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateway.output import FinishReason, TokenLogprobs
from octavo.v1 import inference_pb2, kvmanager_pb2
from services.gateway.pacer import Pace, Pacer
from services.rpc.status import RpcError


@dataclass(slots=True)
class Update:
    """New tokens of one sequence.

    Attributes:
        position: Index in the sequence's output of the first token.
        logprobs: One for each token, or none.
        finish_reason: Set when the sequence has ended.
        score: Of a ranked sequence, with its last tokens.
    """

    sequence_index: int
    position: int
    token_ids: list[int]
    logprobs: Sequence[TokenLogprobs] = ()
    finish_reason: FinishReason | None = None
    score: float | None = None

    def join(self, later: Update) -> bool:
        """Takes in what follows for the same sequence. Returns False where it does not follow."""
        follows = later.position == self.position + len(self.token_ids) and self.finish_reason is None
        if not follows or bool(later.logprobs) != bool(self.logprobs):
            return False
        self.token_ids += later.token_ids
        if self.logprobs:
            self.logprobs = [*self.logprobs, *later.logprobs]
        self.finish_reason, self.score = later.finish_reason, later.score
        return True


@dataclass(slots=True)
class Delivery:
    """All that there is for one request."""

    progress: inference_pb2.PrefillProgress | None = None
    updates: list[Update] = field(default_factory=list)
    end: kvmanager_pb2.RequestEnd | None = None


class RequestStream:
    """One request's way to the KV manager and back.

    What comes before it is taken, because the client is slower than the steps or has had its turn, is taken together.

    Args:
        handle: The request's number.
        abort: Sends an abort to the KV manager.
        forget: Called with the handle when nothing more is to be delivered.
        pacer: Says whose turn it is.
        pace: How often the request wants tokens.
    """

    def __init__(
        self,
        handle: int,
        abort: Callable[[kvmanager_pb2.Abort], None],
        forget: Callable[[int], None],
        pacer: Pacer,
        pace: Pace,
    ) -> None:
        self._handle = handle
        self._abort = abort
        self._forget = forget
        self._pacer = pacer
        self.pace = pace
        self._loop = asyncio.get_running_loop()
        self._delivery: Delivery | None = None
        self._latest: dict[int, Update] = {}
        self._error: RpcError | None = None
        self._taker: asyncio.Future[None] | None = None
        self._rests_until = 0.0
        self._waits_for_turn = False
        self._over = False

    # From the KV manager

    def add_progress(self, progress: inference_pb2.PrefillProgress) -> None:
        """So much of the prompt has been computed."""
        self._news().progress = progress
        self._offer()

    def add(self, update: Update) -> None:
        """A sequence got tokens."""
        latest = self._latest.get(update.sequence_index)
        if latest is None or not latest.join(update):
            self._latest[update.sequence_index] = update
            self._news().updates.append(update)
        self._offer()

    def end(self, end: kvmanager_pb2.RequestEnd) -> None:
        """The request is over."""
        self._news().end = end
        self._hand_over()

    def fail(self, error: RpcError) -> None:
        """Nothing more will come."""
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
            RpcError: the KV manager is gone.
        """
        while self._error is None and (self._delivery is None or self._waits_for_turn):
            self._taker = self._loop.create_future()
            await self._taker
        if self._error is not None:
            self._over = True
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
        self._abort(kvmanager_pb2.Abort(handle=self._handle, sequence_index=sequence_index))

    def close(self) -> None:
        """Gives the request up, unless it has ended."""
        self._forget(self._handle)
        if not self._over:
            self._abort(kvmanager_pb2.Abort(handle=self._handle))
