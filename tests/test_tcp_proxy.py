"""The proxy itself: what it passes on, holds back and breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.ports import free_port
from tests.tcp_proxy import TcpProxy, ThreadedTcpProxy

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def proxy() -> AsyncIterator[TcpProxy]:
    """In front of a server that sends back what it gets, until the end."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()

    port = free_port()
    server = await asyncio.start_server(echo, "127.0.0.1", port)
    proxy = TcpProxy(f"127.0.0.1:{port}")
    await proxy.start()
    yield proxy
    await proxy.stop()
    server.close()


async def connect(proxy: TcpProxy) -> Streams:
    host, _, port = proxy.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def test_what_is_sent_comes_through_to_the_last_byte(proxy):
    reader, writer = await connect(proxy)
    sent = bytes(range(256)) * 4000
    writer.write(sent)
    writer.write_eof()
    assert await reader.read(-1) == sent


async def test_delayed_data_keeps_its_order(proxy):
    proxy.delay = 0.02
    reader, writer = await connect(proxy)
    for number in range(20):
        writer.write(b"%d " % number)
        await writer.drain()
    writer.write_eof()
    assert await reader.read(-1) == b"".join(b"%d " % number for number in range(20))


async def test_frozen_connections_stay_open_and_go_on(proxy):
    reader, writer = await connect(proxy)
    proxy.freeze()
    writer.write(b"later")
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.1)
    proxy.thaw()
    assert await reader.readexactly(5) == b"later"


async def test_healing_resets_what_was_frozen_and_takes_new_connections(proxy):
    reader, writer = await connect(proxy)
    writer.write(b"1")
    assert await reader.readexactly(1) == b"1"
    proxy.freeze()
    writer.write(b"lost")
    proxy.heal()
    with pytest.raises(ConnectionResetError):
        await reader.read(-1)
    reader, writer = await connect(proxy)
    writer.write(b"2")
    assert await reader.readexactly(1) == b"2"


async def test_a_target_that_is_not_there_is_a_reset():
    proxy = TcpProxy(f"127.0.0.1:{free_port()}")
    await proxy.start()
    reader, _ = await connect(proxy)
    with pytest.raises(ConnectionResetError):
        await reader.read(-1)
    await proxy.stop()


def test_on_a_thread_of_its_own():
    proxy = ThreadedTcpProxy(f"127.0.0.1:{free_port()}")
    proxy.set_delay(0.01)
    proxy.freeze()
    proxy.heal()
    assert proxy.num_connections == 0
    proxy.close()
