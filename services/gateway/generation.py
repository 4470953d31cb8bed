"""One request on its way through the gateway: tokens in, text out, however it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace

import grpc

from gateway.best_of import BestOf
from gateway.gateway import Gateway
from gateway.output import Chunk
from gateway.prepared import PreparedRequest
from octavo.v1 import common_pb2, inference_pb2, kvmanager_pb2
from services.gateway.codec import ResponseEncoder, backend_error
from services.gateway.received import Update
from services.gateway.request_stream import Delivery, RequestStream
from services.rpc.status import RpcError


class Generation:
    """Turns what the KV manager delivers for one request into responses.

    The last response carries the usage, so a chunk that may be the last is held until the request's end is here.

    Args:
        from_token: For each sequence, how many tokens of it the client has already; none of the others.
        on_tokens: Told of tokens that the client has not, as they come: of which sequence, and how many.

    Attributes:
        usage: Of the request, when it is over. Completion tokens are those that were handed out, here or before.
        new_usage: Without those that the client had already.
        finish_reasons: Of the sequences that have ended.
        times: Where the request's time went, once it is over; None where nobody knows.
        over: Whether the response with the usage has come.
    """

    def __init__(
        self,
        gateway: Gateway,
        request: PreparedRequest,
        stream: RequestStream,
        from_token: Sequence[int] = (),
        on_tokens: Callable[[int, int], None] = lambda index, count: None,
    ) -> None:
        self._gateway = gateway
        self._request = request
        self._stream = stream
        self._on_tokens = on_tokens
        self._from_token = [*from_token, *[0] * (request.kept - len(from_token))]
        self._output = gateway.output(request)
        self._encoder = ResponseEncoder(request)
        self._best_of: BestOf | None = None
        if request.kept < request.n:
            self._best_of = BestOf(request.n, request.kept, shows_logprobs=request.shows_logprobs)
        self._started = False
        self._computed_tokens = 0
        self.usage = common_pb2.Usage(prompt_tokens=len(request.prompt_token_ids))
        self.new_usage = common_pb2.Usage(prompt_tokens=len(request.prompt_token_ids))
        self.finish_reasons: list[str] = []
        self.times: kvmanager_pb2.RequestTimes | None = None
        self.over = False

    async def responses(self) -> AsyncIterator[bytes]:
        """`GenerateResponse` messages. Ends after the one with the usage.

        Raises:
            RpcError: the request was refused or ended early, or a sequence ended before the first token that is wanted.
        """
        encoder = self._encoder
        held: tuple[Chunk, int] | None = None
        known: tuple[Chunk, int] | None = None
        while True:
            delivery = await self._stream.next()
            if delivery.progress is not None and self._is_new(delivery.progress):
                yield encoder.progress(delivery.progress)
            for index, whole in self._chunks(delivery):
                self._note(whole)
                chunk = self._new_part(index, whole)
                if chunk is not whole and not chunk.token_ids:
                    known = chunk, index
                    continue
                self.new_usage.completion_tokens += len(chunk.token_ids)
                self._on_tokens(index, len(chunk.token_ids))
                if held is not None:
                    yield encoder.chunk(*held)
                    held = None
                if self._output.finished or self._request.ranked_by_backend:
                    held = chunk, index
                else:
                    yield encoder.chunk(chunk, index)
            if delivery.end is not None:
                if delivery.end.HasField("error"):
                    raise backend_error(delivery.end.error)
                for usage in (self.usage, self.new_usage):
                    usage.cached_tokens = delivery.end.usage.cached_tokens
                    usage.prefix_match_end = delivery.end.usage.prefix_match_end
                # A client that has all tokens may yet lack the usage: it gets the last one's end again.
                last = held or known
                self.times = delivery.end.times if delivery.end.HasField("times") else None
                assert last is not None, "the request ended before its last sequence"
                self.over = True
                yield encoder.chunk(*last, self.usage)
                return

    def _is_new(self, progress: inference_pb2.PrefillProgress) -> bool:
        """Whether it goes beyond what was told. A request that was preempted, or lost its executor, starts again."""
        if self._started or progress.computed_tokens <= self._computed_tokens:
            return False
        self._computed_tokens = progress.computed_tokens
        return True

    def _chunks(self, delivery: Delivery) -> list[tuple[int, Chunk]]:
        """What there is to hand out, by sequence index."""
        chunks: list[tuple[int, Chunk]] = []
        for update in self._updates(delivery):
            index = update.sequence_index
            chunk = self._output.add(
                index, update.position, update.token_ids, update.logprobs, update.finish_reason, update.score
            )
            if chunk is None:
                continue
            if chunk.ended_here:
                self._stream.end_sequence(index)
            chunks += [(index, chunk)] if self._best_of is None else self._best_of.add(index, chunk)
        return chunks

    def _updates(self, delivery: Delivery) -> Iterable[Update]:
        """In pieces, so that no chunk holds both what the client has and what it has not."""
        if self._best_of is not None or not any(self._from_token):
            return delivery.updates
        return [part for each in delivery.updates for part in each.split(self._from_token[each.sequence_index])]

    def _new_part(self, index: int, chunk: Chunk) -> Chunk:
        """What the client does not have yet. Of a chunk that it has, what is left holds no tokens."""
        num_known = self._from_token[index] - chunk.position
        if num_known <= 0:
            return chunk
        if num_known > len(chunk.token_ids) and chunk.finish_reason is not None:
            message = f"from_token: sequence {index} has {chunk.position + len(chunk.token_ids)} tokens"
            raise RpcError(grpc.StatusCode.OUT_OF_RANGE, message, "BEYOND_THE_END", "from_token")
        return replace(
            chunk,
            position=chunk.position + min(num_known, len(chunk.token_ids)),
            token_ids=chunk.token_ids[num_known:],
            text=self._text_after(chunk, num_known),
            logprobs=chunk.logprobs[num_known:],
        )

    def _text_after(self, chunk: Chunk, num_known: int) -> str:
        """Of a chunk with a whole sequence, as ranked ones are, what comes after some of its tokens."""
        if num_known >= len(chunk.token_ids):
            return ""
        before = self._gateway.output(self._request).add(0, 0, chunk.token_ids[:num_known])
        assert before is not None
        return chunk.text[len(before.text) :]

    def _note(self, chunk: Chunk) -> None:
        self._started = True
        self.usage.completion_tokens += len(chunk.token_ids)
        if chunk.finish_reason is not None:
            self.finish_reasons.append(chunk.finish_reason.name.lower())
