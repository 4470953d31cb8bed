"""One request on its way through the gateway: tokens in, text out, however it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator

from gateway.best_of import BestOf
from gateway.gateway import Gateway
from gateway.output import Chunk
from gateway.prepared import PreparedRequest
from octavo.v1 import common_pb2, inference_pb2
from services.gateway.codec import ResponseEncoder, backend_error
from services.gateway.request_stream import Delivery, RequestStream


class Generation:
    """Turns what the KV manager delivers for one request into responses.

    The last response carries the usage, so a chunk that may be the last is held until the request's end is here.

    Attributes:
        usage: Of the request, when it is over. Completion tokens are those that were handed out.
        finish_reasons: Of the sequences that have ended.
        over: Whether the response with the usage has come.
    """

    def __init__(self, gateway: Gateway, request: PreparedRequest, stream: RequestStream) -> None:
        self._request = request
        self._stream = stream
        self._output = gateway.output(request)
        self._encoder = ResponseEncoder(request)
        self._best_of: BestOf | None = None
        if request.kept < request.n:
            self._best_of = BestOf(request.n, request.kept, shows_logprobs=request.shows_logprobs)
        self._started = False
        self._computed_tokens = 0
        self.usage = common_pb2.Usage(prompt_tokens=len(request.prompt_token_ids))
        self.finish_reasons: list[str] = []
        self.over = False

    async def responses(self) -> AsyncIterator[bytes]:
        """`GenerateResponse` messages. Ends after the one with the usage.

        Raises:
            RpcError: the request was refused or ended early.
        """
        encoder = self._encoder
        held: tuple[Chunk, int] | None = None
        while True:
            delivery = await self._stream.next()
            if delivery.progress is not None and self._is_new(delivery.progress):
                yield encoder.progress(delivery.progress)
            for index, chunk in self._chunks(delivery):
                self._note(chunk)
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
                self.usage.cached_tokens = delivery.end.usage.cached_tokens
                self.usage.prefix_match_end = delivery.end.usage.prefix_match_end
                assert held is not None, "the request ended before its last sequence"
                self.over = True
                yield encoder.chunk(*held, self.usage)
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
        for update in delivery.updates:
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

    def _note(self, chunk: Chunk) -> None:
        self._started = True
        self.usage.completion_tokens += len(chunk.token_ids)
        if chunk.finish_reason is not None:
            self.finish_reasons.append(chunk.finish_reason.name.lower())
