"""One call on its way: its requests run, and what comes is told in OpenAI's shape, streamed or at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.prepared import PreparedRequest
from octavo.v1 import inference_pb2
from services.gateway.calls import Calls, Metadata
from services.gateway.http.errors import HttpError
from services.gateway.http.openai.asks import Ask
from services.gateway.http.openai.events import EventStream
from services.gateway.http.openai.explanation import Explain, explanation
from services.gateway.http.openai.shapes import Head, Shape, encode
from services.gateway.http.openai.usage import CallUsage
from services.rpc.status import RpcError

Take = Callable[[int, inference_pb2.GenerateResponse], Awaitable[None]]
"""Gets each response, with the number of the choice that it belongs to."""


class Answer(Response):
    """Runs a call when it is sent.

    Args:
        ask: What is asked for.
        size: Of the body, in bytes.
        head: What the answer, or each chunk of it, begins with.
        explain: Tells the life of a request that is over.
    """

    def __init__(
        self, calls: Calls, ask: Ask, size: int, metadata: Metadata, head: Head, shape: Shape, explain: Explain
    ) -> None:
        self._calls = calls
        self._ask = ask
        self._size = size
        self._metadata = metadata
        self._head = head
        self._shape = shape
        self._explain = explain
        self._usage = CallUsage()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ends the call when its client leaves.

        Raises:
            HttpError: it was refused, or ended early, before anything was sent.
        """
        async with _while_connected(receive):
            if self._ask.stream:
                await self._stream(EventStream(send, self._ask.request_id))
            else:
                await (await self._whole())(scope, receive, send)

    # As a whole

    async def _whole(self) -> Response:
        taken: dict[int, list[inference_pb2.GenerateResponse]] = {}

        async def take(choice: int, response: inference_pb2.GenerateResponse) -> None:
            taken.setdefault(choice, []).append(response)

        await self._run(take)
        shown = self._head.shown()
        shown["choices"] = [self._shape.whole(choice, responses) for choice, responses in sorted(taken.items())]
        shown["usage"] = self._usage.shown()
        if self._ask.explain:
            shown["octavo"] = await self._explained()
        headers = {"x-request-id": self._ask.request_id}
        return Response(encode(shown), media_type="application/json", headers=headers)

    # As a stream

    async def _stream(self, stream: EventStream) -> None:
        before = b"data: " + encode(self._head.shown())[:-1] + b',"choices":['
        after = b'],"usage":null}\n\n' if self._ask.include_usage else b"]}\n\n"

        async def take(choice: int, response: inference_pb2.GenerateResponse) -> None:
            self._usage.add_tokens(choice, len(response.token_ids))
            end = after
            if self._ask.continuous_usage:
                end = b'],"usage":' + encode(self._usage.shown_so_far(choice)) + b"}\n\n"
            pieces = self._shape.pieces(choice, response)
            if pieces:
                await stream.send(b"".join([part for piece in pieces for part in (before, piece, end)]))

        try:
            await self._run(take)
            await stream.end(await self._last_chunk() + b"data: [DONE]\n\n")
        except HttpError as error:
            if not stream.begun:
                raise
            await stream.end(b"data: " + encode(error.body) + b"\n\n")

    async def _last_chunk(self) -> bytes:
        shown = self._head.shown() | {"choices": []}
        if self._ask.include_usage:
            shown["usage"] = self._usage.shown()
        if self._ask.explain:
            shown["octavo"] = await self._explained()
        wanted = self._ask.include_usage or self._ask.explain
        return b"data: " + encode(shown) + b"\n\n" if wanted else b""

    # Both

    async def _run(self, take: Take) -> None:
        """Runs all requests.

        Raises:
            HttpError: one was refused, or ended early; the others are ended.
        """
        await _all([self._run_one(index, take) for index in range(len(self._ask.requests))])

    async def _run_one(self, index: int, take: Take) -> None:
        request = self._ask.requests[index]
        recipient = _Recipient(index, index * self._ask.num_choices, take, self._usage)
        size = self._size // len(self._ask.requests)
        try:
            await self._calls.generate(lambda: request, size, self._metadata, recipient, self._count_prompt)
        except RpcError as error:
            raise self._ask.names[index].error(error) from error

    def _count_prompt(self, prepared: PreparedRequest) -> None:
        self._usage.add_prompt(len(prepared.prompt_token_ids))

    async def _explained(self) -> Any:
        tenant = self._calls.identify(self._metadata).tenant
        explained = [
            await explanation(each.request_id, self._usage.of_request(index), tenant, self._explain)
            for index, each in enumerate(self._ask.requests)
        ]
        return explained[0] if len(explained) == 1 else {"requests": explained}


class _Recipient:
    """Where one request's responses go.

    Args:
        index: The request's number.
        first_choice: The number of its first sequence among all choices.
    """

    def __init__(self, index: int, first_choice: int, take: Take, usage: CallUsage) -> None:
        self._index = index
        self._first_choice = first_choice
        self._take = take
        self._usage = usage

    async def write(self, data: bytes) -> None:
        response = inference_pb2.GenerateResponse.FromString(data)
        if response.HasField("usage"):
            self._usage.add_request(self._index, response.usage)
        await self._take(self._first_choice + response.sequence_index, response)

    def time_remaining(self) -> float | None:
        """None: HTTP knows no deadlines but the request's own."""
        return None


@asynccontextmanager
async def _while_connected(receive: Receive) -> AsyncIterator[None]:
    """Cancels the block when the client leaves."""
    block = asyncio.current_task()
    assert block is not None
    over = False

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if not over:
            block.cancel()

    watching = asyncio.ensure_future(watch())
    try:
        yield
    finally:
        over = True
        watching.cancel()


async def _all(coroutines: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Runs them side by side. The first that fails ends the others."""
    if len(coroutines) == 1:
        await coroutines[0]
        return
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
