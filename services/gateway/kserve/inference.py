"""Requests for text, each answered by one response or by a stream of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from gateway.request import GenerationRequest, TextPrompt
from octavo.kserve import inference_pb2
from octavo.v1 import inference_pb2 as generation_pb2
from services.gateway.calls import Calls, Metadata
from services.gateway.kserve.answers import Answer
from services.gateway.kserve.errors import in_names_of_client
from services.gateway.kserve.merged_stream import MergedStream
from services.gateway.kserve.requests import NUM_INPUT_TOKENS, InferRequest
from services.rpc.status import RpcError

FINAL_RESPONSE = "triton_final_response"


class Inference:
    """Does what requests ask for, by the calls that all protocols share."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def response(self, request: InferRequest, metadata: Metadata) -> inference_pb2.ModelInferResponse:
        """The one response to a request.

        Raises:
            RpcError: it was refused or ended early.
        """
        answer = await self._new_answer(request)
        async with aclosing(self._generated(request, metadata)) as generated:
            async for prompt, response in generated:
                answer.add(prompt, response)
        return answer.take()

    async def responses(
        self, request: InferRequest, metadata: Metadata
    ) -> AsyncGenerator[inference_pb2.ModelInferResponse, None]:
        """As many responses as the request wants. The last one, and only that, says that it is.

        Raises:
            RpcError: it was refused or ended early.
        """
        answer = await self._new_answer(request)
        async with aclosing(self._generated(request, metadata)) as generated:
            async for prompt, response in generated:
                answer.add(prompt, response)
                if request.stream or answer.complete:
                    message = answer.take()
                    message.parameters[FINAL_RESPONSE].bool_param = answer.complete
                    yield message

    async def _new_answer(self, request: InferRequest) -> Answer:
        lengths: list[int] = []
        if NUM_INPUT_TOKENS in request.outputs:
            lengths = [await self._count_tokens(text, request) for text in request.texts]
        return Answer(request, self._calls.gateway.model_name, lengths)

    async def _count_tokens(self, text: str, request: InferRequest) -> int:
        try:
            return len(await self._calls.tokenize(lambda: TextPrompt(text), len(text), request.model_name))
        except RpcError as error:
            raise in_names_of_client(error, request.given_as) from error

    async def _generated(
        self, request: InferRequest, metadata: Metadata
    ) -> AsyncGenerator[tuple[int, generation_pb2.GenerateResponse], None]:
        """What comes for each prompt, by its number."""
        merged: MergedStream[tuple[int, generation_pb2.GenerateResponse]] = MergedStream()

        async def generate(prompt: int, generation: GenerationRequest, size: int) -> None:
            async with aclosing(self._calls.responses(lambda: generation, size, metadata)) as responses:
                async for response in responses:
                    await merged.put((prompt, response))

        for prompt, (generation, text) in enumerate(zip(request.generations, request.texts, strict=True)):
            merged.start(generate(prompt, generation, len(text)))
        try:
            async with aclosing(merged.items()) as items:
                async for item in items:
                    yield item
        except RpcError as error:
            raise in_names_of_client(error, request.given_as) from error
