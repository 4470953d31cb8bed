"""Connections of which one end is gone without a word are noticed; a busy end is not taken for one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from octavo.channel import open_aio_channel
from services.config import ExecutorConfig, GatewayConfig, KVManagerConfig, ServiceConfig
from services.rpc.channel import connector
from services.rpc.server import RpcServer
from tests.ports import free_port
from tests.services.e2e.processes import Processes
from tests.services.tls.echo_server import ECHO
from tests.tcp_proxy import TcpProxy

PATIENCE = 60.0
"""Less than gRPC's own minute for a ping, and TCP's quarter of an hour."""


class Rig:
    """A server whose one stream is open through a proxy."""

    def __init__(self, proxy: TcpProxy, stream: Any, server_noticed: asyncio.Event) -> None:
        self.proxy = proxy
        self._stream = stream
        self._server_noticed = server_noticed

    async def send(self) -> None:
        await self._stream.write(b"hello")
        assert await asyncio.wait_for(self._stream.read(), PATIENCE) == b"hello"

    async def client_notices(self) -> grpc.StatusCode:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(self._stream.read(), PATIENCE)
        return caught.value.code()

    async def server_notices(self) -> None:
        await asyncio.wait_for(self._server_noticed.wait(), PATIENCE)


@asynccontextmanager
async def rig(config: ServiceConfig, callers: Any, connect: Callable[[str], grpc.aio.Channel]) -> AsyncIterator[Rig]:
    noticed = asyncio.Event()

    async def watched(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        try:
            async for request in requests:
                yield request
        finally:
            noticed.set()

    server = RpcServer(config, [ECHO], callers=callers)
    many = grpc.stream_stream_rpc_method_handler(watched)
    server.grpc.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(ECHO, {"Many": many})])
    async with AsyncExitStack() as stack:
        proxy = TcpProxy(await server.start())
        stack.push_async_callback(server.stop, 0)
        await proxy.start()
        stack.push_async_callback(proxy.stop)
        channel = await stack.enter_async_context(connect(proxy.address))
        yield Rig(proxy, channel.stream_stream(f"/{ECHO}/Many")(), noticed)


def inner_channel(address: str) -> grpc.aio.Channel:
    return connector(KVManagerConfig(), "executor")(address)


async def test_both_ends_of_an_inner_connection_notice_that_the_other_is_gone():
    config = ExecutorConfig(model="none", port=free_port())
    async with rig(config, ("kvmanager",), inner_channel) as pair:
        await pair.send()
        pair.proxy.freeze()
        code, _ = await asyncio.gather(pair.client_notices(), pair.server_notices())
        assert code is grpc.StatusCode.UNAVAILABLE


@pytest.mark.slow
async def test_public_connections_and_those_on_which_nothing_happens():
    await asyncio.gather(
        both_ends_of_a_public_connection_notice_that_the_other_is_gone(),
        nothing_happens_and_the_connection_stays(inner_channel, ("kvmanager",), seconds=10.0),
        nothing_happens_and_the_connection_stays(open_aio_channel, None, seconds=25.0),
    )


async def both_ends_of_a_public_connection_notice_that_the_other_is_gone():
    async with rig(GatewayConfig(model="none", port=free_port()), None, open_aio_channel) as pair:
        await pair.send()
        pair.proxy.freeze()
        code, _ = await asyncio.gather(pair.client_notices(), pair.server_notices())
        assert code is grpc.StatusCode.UNAVAILABLE


async def nothing_happens_and_the_connection_stays(connect: Any, callers: Any, seconds: float):
    """For longer than a server stands pings that it did not ask for."""
    async with rig(ExecutorConfig(model="none", port=free_port()), callers, connect) as pair:
        await pair.send()
        silence = asyncio.ensure_future(pair.client_notices())
        done, _ = await asyncio.wait([silence], timeout=seconds)
        assert not done
        silence.cancel()


@pytest.fixture
def processes(tmp_path: Path) -> Any:
    started = Processes(tmp_path)
    yield started
    started.end()


@pytest.mark.slow
async def test_a_busy_end_is_not_taken_for_one_that_is_gone_and_a_stopped_one_is(processes: Processes):
    port = free_port()
    server = processes.other("echo", [sys.executable, "-m", "tests.services.tls.echo_server", str(port)])
    server.start()
    async with inner_channel(f"127.0.0.1:{port}") as channel:
        await asyncio.wait_for(channel.channel_ready(), PATIENCE)
        stream = channel.stream_stream(f"/{ECHO}/Many")()
        await stream.write(b"before")
        assert await stream.read() == b"before"
        assert await channel.unary_unary(f"/{ECHO}/Block")(b"7", timeout=PATIENCE) == b"7"
        await stream.write(b"after")
        assert await stream.read() == b"after"
        server.pause()
        with pytest.raises(grpc.aio.AioRpcError):
            await asyncio.wait_for(stream.read(), PATIENCE)
        server.go_on()
