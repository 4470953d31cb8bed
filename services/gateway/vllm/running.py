"""Requests that are being answered, for others to abort."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing, contextmanager

import grpc
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm

from octavo.v1 import inference_pb2
from services.gateway.vllm.answers import Answer
from services.rpc.server import Context
from services.rpc.status import RpcError


class RunningGeneration:
    """The call whose handler makes this object."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._task = asyncio.current_task()
        self._aborted = False
        self._writing = False

    def abort(self) -> None:
        """Ends the answer where it is."""
        if self._task is not None and not self._aborted:
            self._task.cancel()
        self._aborted = True

    async def send(self, responses: AsyncGenerator[inference_pb2.GenerateResponse, None], answer: Answer) -> None:
        """Answers the call with these responses, and with the answer's end as far as it has come where it is aborted.

        Raises:
            RpcError: as the responses do; CANCELLED: it was aborted, and its client does not read.
        """
        try:
            async with aclosing(responses):
                async for response in responses:
                    await self._write(answer.add(response))
        except asyncio.CancelledError:
            if not self._aborted:
                raise
            if self._writing:  # no other message can follow one that is half sent
                raise RpcError(grpc.StatusCode.CANCELLED, "the request was aborted", "ABORTED") from None
            await self._write(answer.aborted())

    async def _write(self, responses: Iterable[vllm.GenerateResponse]) -> None:
        for response in responses:
            self._writing = True
            await self._context.write(response)
            self._writing = False


class RunningGenerations:
    """Those of all tenants, each known by the id that its client gave it."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], RunningGeneration] = {}

    def count(self, tenant: str) -> int:
        """How many of the tenant's are running."""
        return sum(each == tenant for each, _ in self._running)

    @contextmanager
    def add(self, tenant: str, request_id: str, generation: RunningGeneration) -> Iterator[None]:
        """It is running for the time of a block.

        Raises:
            RpcError: ALREADY_EXISTS: the tenant has one of this id.
        """
        key = tenant, request_id
        if key in self._running:
            message = f"request_id: {request_id!r} is running already"
            raise RpcError(grpc.StatusCode.ALREADY_EXISTS, message, "REQUEST_EXISTS", "request_id")
        self._running[key] = generation
        try:
            yield
        finally:
            del self._running[key]

    def abort(self, tenant: str, request_ids: Iterable[str]) -> None:
        """Ends those of the tenant that are running. Others are no error: they may have ended just now."""
        for request_id in request_ids:
            generation = self._running.get((tenant, request_id))
            if generation is not None:
                generation.abort()
