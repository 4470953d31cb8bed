"""A server for tests: answers what it is sent, and can be kept from its event loop.

python echo_server.py PORT  is one as a process of its own, an inner one.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

from services.config import ExecutorConfig
from services.rpc.server import RpcServer

ECHO = "octavo.test.Echo"


async def once(request: bytes, context: Any) -> bytes:
    return request


async def many(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


async def many_by_hand(requests: AsyncIterator[bytes], context: Any) -> None:
    async for request in requests:
        await context.write(request)


async def block(request: bytes, context: Any) -> bytes:
    """Keeps the event loop for so many seconds."""
    time.sleep(float(request))  # noqa: ASYNC251 - that is what it is for
    return request


def echo() -> grpc.GenericRpcHandler[Any, Any]:
    handlers = {
        "Once": grpc.unary_unary_rpc_method_handler(once),
        "Many": grpc.stream_stream_rpc_method_handler(many),
        "ManyByHand": grpc.stream_stream_rpc_method_handler(many_by_hand),
        "Block": grpc.unary_unary_rpc_method_handler(block),
    }
    return grpc.method_handlers_generic_handler(ECHO, handlers)


async def main(port: int) -> None:
    server = RpcServer(ExecutorConfig(model="none", port=port), [ECHO], callers=("kvmanager",))
    server.grpc.add_generic_rpc_handlers([echo()])
    await server.start()
    await server.set_serving(True)
    await server.grpc.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
