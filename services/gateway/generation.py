"""One request on its way through the gateway: tokens in, text out, however it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator

from gateway.gateway import Gateway
from gateway.output import Chunk
from gateway.request import PreparedRequest
from octavo.v1 import inference_pb2
from services.gateway.codec import add_update, backend_error, encode_chunk
from services.gateway.kvmanager_link import Delivery, RequestStream


class Generation:
    """Turns what the KV manager delivers for one request into responses.

    The last response carries the usage, so a chunk that ends the last sequence is held until the request's end is here.
    """

    def __init__(self, gateway: Gateway, request: PreparedRequest, stream: RequestStream) -> None:
        self._request = request
        self._stream = stream
        self._output = gateway.output(request)
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.finish_reasons: list[str] = []

    async def responses(self) -> AsyncIterator[inference_pb2.GenerateResponse]:
        """Ends after the response with the usage.

        Raises:
            RpcError: the request was refused or ended early.
        """
        held: tuple[int, Chunk] | None = None
        while True:
            delivery = await self._stream.next()
            for index, chunk in self._chunks(delivery):
                if held is not None:
                    yield encode_chunk(held[1], self._request, held[0])
                    held = None
                if self._output.finished:
                    held = index, chunk
                else:
                    yield encode_chunk(chunk, self._request, index)
            if delivery.end is not None:
                if delivery.end.HasField("error"):
                    raise backend_error(delivery.end.error)
                self.cached_tokens = delivery.end.usage.cached_tokens
                usage = self._output.usage(len(self._request.prompt_token_ids), self.cached_tokens)
                self.completion_tokens = usage.completion_tokens
                assert held is not None, "the request ended before its last sequence"
                yield encode_chunk(held[1], self._request, held[0], usage)
                return

    def _chunks(self, delivery: Delivery) -> list[tuple[int, Chunk]]:
        chunks = []
        for update in delivery.updates:
            index = update.sequence_index
            chunk = add_update(self._output, update)
            if chunk is None:
                continue
            if chunk.ended_here:
                self._stream.end_sequence(index)
            if chunk.finish_reason is not None:
                self.finish_reasons.append(chunk.finish_reason.name.lower())
            chunks.append((index, chunk))
        return chunks
