"""Questions to a KV manager that is lost while it answers."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty

from services.gateway.kvmanager_link import _answer_of
from services.rpc.status import RpcError


async def test_a_connection_that_is_closed_is_no_reason_for_who_asked_to_end() -> None:
    async def never(request: Empty, context: object) -> Empty:
        await asyncio.Event().wait()
        return request

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(never, Empty.FromString, Empty.SerializeToString)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test", {"Never": handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    call = channel.unary_unary("/test/Never", Empty.SerializeToString, Empty.FromString)(Empty())
    asking = asyncio.ensure_future(_answer_of(call))
    await asyncio.sleep(0.05)
    await channel.close()
    with pytest.raises(RpcError, match="the KV manager is lost") as lost:
        await asking
    assert lost.value.code is grpc.StatusCode.UNAVAILABLE
    await server.stop(0)


async def test_who_asked_can_be_cancelled_and_takes_the_question_back() -> None:
    question: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    asking = asyncio.ensure_future(_answer_of(question))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert question.cancelled()
