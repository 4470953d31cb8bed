"""A TCP proxy for tests of what a network does to connections: delay, silence, reset."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tests.ports import free_port

T = TypeVar("T")

_CHUNK_BYTES = 64 * 1024
_RESET_WHEN_CLOSED = struct.pack("ii", 1, 0)
"""SO_LINGER with no time to linger: closing sends RST instead of FIN."""


class TcpProxy:
    """Passes connections on to one address. Belongs to the event loop that starts it.

    Attributes:
        address: where it listens, ``host:port``. The same after `stop` and `start`.
        delay: seconds that each piece of data takes each way. Order is kept, throughput is not limited by it.
    """

    def __init__(self, target: str) -> None:
        """Starts nothing yet.

        Args:
            target: ``host:port`` that connections are passed on to. Nobody has to be there yet.
        """
        self.address = f"127.0.0.1:{free_port()}"
        self.delay = 0.0
        self._target = target
        self._flows = asyncio.Event()
        self._flows.set()
        self._pairs: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._server: asyncio.Server | None = None

    @property
    def num_connections(self) -> int:
        """Connections that are open now."""
        return len(self._pairs)

    async def start(self) -> None:
        """Listens."""
        host, _, port = self.address.rpartition(":")
        self._server = await asyncio.start_server(self._take, host, int(port))

    async def stop(self) -> None:
        """Resets all connections and listens no longer."""
        if self._server is not None:
            self._server.close()
            self._server = None
        pairs = list(self._pairs)
        self.reset()
        await asyncio.gather(*pairs, return_exceptions=True)

    def freeze(self) -> None:
        """Nothing passes any more, and no end is told of it, as when a cable is pulled or a network is parted.

        What was sent meanwhile arrives after `thaw`, on connections that both ends still hold; `heal` resets them. New
        connections are taken and frozen likewise.
        """
        self._flows.clear()

    def thaw(self) -> None:
        """Ends what `freeze` began."""
        self._flows.set()

    def heal(self) -> None:
        """Ends what `freeze` began, as after a long partition: what was sent is lost, and connections are reset."""
        self.reset()
        self.thaw()

    def reset(self) -> None:
        """Breaks every connection at once with RST; new ones are taken."""
        for pair, writers in list(self._pairs.items()):
            for writer in writers:
                _reset(writer)
            pair.cancel()

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pair = asyncio.ensure_future(self._pass(reader, writer))
        self._pairs[pair] = [writer]
        pair.add_done_callback(self._forget)

    def _forget(self, pair: asyncio.Task[None]) -> None:
        for writer in self._pairs.pop(pair):
            writer.close()
        if not pair.cancelled():
            pair.exception()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flows.wait()
        host, _, port = self._target.rpartition(":")
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            _reset(writer)
            return
        own = asyncio.current_task()
        assert own is not None
        self._pairs[own].append(far_writer)
        try:
            # One direction may end before the other.
            await _together(self._pump(reader, far_writer), self._pump(far_reader, writer))
        except OSError:
            _reset(writer)
            _reset(far_writer)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=1024)
        await _together(self._read(reader, under_way), self._deliver(under_way, writer))

    async def _read(self, reader: asyncio.StreamReader, under_way: asyncio.Queue[tuple[float, bytes]]) -> None:
        now = asyncio.get_running_loop().time
        data = b"-"
        while data:
            data = await reader.read(_CHUNK_BYTES)
            await under_way.put((now() + self.delay, data))

    async def _deliver(self, under_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        now = asyncio.get_running_loop().time
        while True:
            due, data = await under_way.get()
            await asyncio.sleep(max(0.0, due - now()))
            await self._flows.wait()
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()


async def _together(*parts: Coroutine[Any, Any, None]) -> None:
    """Runs all to their ends; the first that fails ends the others."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _reset(writer: asyncio.StreamWriter) -> None:
    wire = writer.get_extra_info("socket")
    if wire is not None and wire.fileno() >= 0:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_WHEN_CLOSED)
    writer.transport.abort()


class ThreadedTcpProxy:
    """The proxy on an event loop and a thread of its own, for tests that have no loop. Started when it is made."""

    def __init__(self, target: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy", daemon=True)
        self._thread.start()
        self._proxy = self._run(_started(target))
        self.address = self._proxy.address

    @property
    def num_connections(self) -> int:
        return self._proxy.num_connections

    def set_delay(self, seconds: float) -> None:
        self._proxy.delay = seconds

    def freeze(self) -> None:
        self._call(self._proxy.freeze)

    def thaw(self) -> None:
        self._call(self._proxy.thaw)

    def heal(self) -> None:
        self._call(self._proxy.heal)

    def reset(self) -> None:
        self._call(self._proxy.reset)

    def close(self) -> None:
        """Resets all connections and ends the thread."""
        self._run(self._proxy.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, action: Callable[[], None]) -> None:
        async def act() -> None:
            action()

        self._run(act())

    def _run(self, action: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(action, self._loop).result(timeout=30)


async def _started(target: str) -> TcpProxy:
    proxy = TcpProxy(target)
    await proxy.start()
    return proxy
