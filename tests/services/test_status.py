"""Errors on the wire, from a real server to real clients."""

import asyncio
import logging
import random

import grpc
import pytest

from services.rpc.server import Context
from services.rpc.status import RpcError, abort

NUM_CLIENTS, NUM_CALLS = 20, 25


async def refuse_at_the_deadline(request: bytes, context: Context) -> None:
    """Says that time is over within 2 ms of the moment at which it is over for the client, too."""
    await asyncio.sleep(max(0.0, context.time_remaining() + random.uniform(-0.002, 0.002)))
    await abort(context, RpcError(grpc.StatusCode.DEADLINE_EXCEEDED, "time is over", "DEADLINE"))


async def test_a_refusal_that_meets_the_calls_own_end_is_no_fault_of_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(refuse_at_the_deadline)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", {"Call": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()

    async def client(channel: grpc.aio.Channel) -> None:
        for _ in range(NUM_CALLS):
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await channel.unary_unary("/test/Call")(b"", timeout=random.uniform(0.03, 0.06))
            assert refusal.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        await asyncio.gather(*(client(channel) for _ in range(NUM_CLIENTS)))
    await server.stop(None)
    assert not caplog.records


@pytest.mark.parametrize("quoted", ["a" * 100_000, "é\n%🐙" * 50_000])
async def test_a_refusal_that_quotes_a_long_request_still_arrives(quoted: str) -> None:
    """Trailers that are too long for a client would be another error, without a reason."""

    async def refuse(request: bytes, context: Context) -> None:
        message = f"name: {quoted} is too long"
        await abort(context, RpcError(grpc.StatusCode.INVALID_ARGUMENT, message, "TOO_LONG", "name"))

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(refuse)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", {"Call": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await channel.unary_unary("/test/Call")(b"")
    await server.stop(None)
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    details = refusal.value.details() or ""
    assert details.startswith("name: ")
    assert details.endswith(" is too long")
