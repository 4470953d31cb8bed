"""The three ways in which ``octavo top`` looks at a stack: a live screen, once, or lines of JSON."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import suppress
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from rich.console import Console
from rich.live import Live

from octavo.client import AsyncClient, Client, OctavoError
from octavo.v1 import monitoring_pb2 as pb
from services.cli.connection import connected
from services.cli.errors import talking_to
from services.cli.options import ClientOptions
from services.cli.top.keys import pressed
from services.cli.top.screen import Focus, Order, View, screen
from services.config import ConfigError, read_api_key

_TIMEOUT_SECONDS = 10.0
_AGAIN_SECONDS = 0.5
_ENDED = 50
_GONE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


def print_once(server: ClientOptions, order: Order) -> None:
    """Prints how it is.

    Raises:
        CommandError: The server refused, or can't be reached.
    """
    view = View(server.address, order=order)
    with connected(server) as client:
        view.take(next(client.watch_status()))
        view.requests = client.requests(_ENDED, timeout=_TIMEOUT_SECONDS)
    console = Console(highlight=False, emoji=False, markup=False)
    console.print(screen(view, console.width))


def print_json_lines(server: ClientOptions, interval: float, *, once: bool) -> None:
    """Prints a line for each look.

    Raises:
        CommandError: The server refused, or can't be reached.
    """
    with connected(server) as client:
        for response in client.watch_status(interval):
            print(json.dumps(_as_json(client, response.status)), flush=True)
            if once:
                return


def _as_json(client: Client, status: pb.Status) -> dict[str, Any]:
    requests = client.requests(_ENDED, timeout=_TIMEOUT_SECONDS)
    return {"status": _as_dict(status), "requests": [_as_dict(each) for each in requests]}


def _as_dict(message: Any) -> dict[str, Any]:
    fields: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return fields


def watch(server: ClientOptions, interval: float, order: Order) -> None:
    """Shows it live until q or Ctrl-C, over restarts of the gateway; once where there is no terminal.

    Raises:
        CommandError: The server refused, or can't be reached at the start.
    """
    console = Console(highlight=False, emoji=False, markup=False)
    if not console.is_terminal or not sys.stdin.isatty():
        print_once(server, order)
        return
    with talking_to(server.address):
        asyncio.run(_watch(server, interval, View(server.address, order=order), console))


async def _watch(server: ClientOptions, interval: float, view: View, console: Console) -> None:
    async with _open(server) as client:
        watcher = Watcher(client, view, interval)
        await watcher.begin()
        # Keys first: those pressed before a terminal hands out single ones are lost.
        with pressed(watcher.press), Live(console=console, screen=True, auto_refresh=False) as live:

            def show() -> None:
                live.update(screen(view, console.width, console.height), refresh=True)

            watcher.changed = show
            show()
            await watcher.run()


def _open(server: ClientOptions) -> AsyncClient:
    api_key = read_api_key(server.api_key_file)
    try:
        return AsyncClient(server.addresses(), api_key=api_key, tls=server.tls, tls_ca=server.tls_ca, retry=None)
    except ValueError as error:
        raise ConfigError(str(error)) from error


class Watcher:
    """Keeps a view up to date.

    Args:
        client: Without retries: what fails is said, and tried again here.
        view: Is changed.
        interval: Seconds between two looks.

    Attributes:
        changed: Is called after each change.
    """

    def __init__(self, client: AsyncClient, view: View, interval: float) -> None:
        self._client = client
        self._view = view
        self._interval = interval
        self._tasks: list[asyncio.Task[None]] = []
        self._left = False
        self.changed = _nothing

    async def begin(self) -> None:
        """Looks once.

        Raises:
            OctavoError: The server refused, or can't be reached.
        """
        responses = self._client.watch_status(self._interval)
        self._view.take(await anext(responses))
        self._view.requests = await self._client.requests(_ENDED, timeout=_TIMEOUT_SECONDS)

    async def run(self) -> None:
        """Returns when the user leaves.

        Raises:
            OctavoError: The server does not answer any more to who asks.
        """
        loop = asyncio.get_running_loop()
        for number, act in ((signal.SIGINT, self.leave), (signal.SIGTERM, self.leave), (signal.SIGWINCH, self.change)):
            loop.add_signal_handler(number, act)
        if not self._left:
            self._tasks = [asyncio.ensure_future(each) for each in (self._follow(), self._list())]
        try:
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*self._tasks)
        finally:
            self.leave()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGWINCH):
                loop.remove_signal_handler(number)

    def leave(self) -> None:
        """Has `run` return, now or at once when it is called."""
        self._left = True
        for task in self._tasks:
            task.cancel()

    def change(self) -> None:
        """Shows the view as it is now."""
        self.changed()

    def press(self, key: str) -> None:
        """A key was pressed."""
        focuses = {"t": Focus.TENANTS, "r": Focus.REQUESTS, "b": Focus.BOTH}
        if key in ("q", "Q", "\x1b"):
            self.leave()
        elif key == "s":
            orders = list(Order)
            self._view.order = orders[(orders.index(self._view.order) + 1) % len(orders)]
        elif key in focuses:
            self._view.focus = focuses[key]
        self.changed()

    async def _follow(self) -> None:
        """The stream of statuses, again and again."""
        while True:
            with self._saying_trouble():
                async for response in self._client.watch_status(self._interval):
                    self._view.take(response)
                    self.changed()
                self._view.trouble = "the gateway has ended the stream; asking again"
            self.changed()
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _list(self) -> None:
        """The requests, at every interval while the stream tells that somebody is there."""
        while True:
            await asyncio.sleep(self._interval)
            if not self._view.trouble:
                with self._saying_trouble():
                    self._view.requests = await self._client.requests(_ENDED, timeout=_TIMEOUT_SECONDS)

    def _saying_trouble(self) -> _Trouble:
        return _Trouble(self._view)


class _Trouble:
    """Turns the failures of a gateway that is away into words, and lets others through."""

    def __init__(self, view: View) -> None:
        self._view = view

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, OctavoError):
            return False
        if error.from_server and error.status not in _GONE:
            return False
        self._view.trouble = f"{error.message if error.from_server else 'the gateway is away'}; asking again"
        return True


def _nothing() -> None:
    pass
