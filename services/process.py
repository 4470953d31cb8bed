"""The life of one process: its event loop, its log, its end by a signal."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from datetime import datetime, timezone
from typing import Any, Protocol

from services.config import ConfigError, ServiceConfig
from services.watchdog import Watchdog, break_off

log = logging.getLogger(__name__)

BROKEN_EXIT_CODE = 70
"""EX_SOFTWARE of sysexits.h."""

UNUSABLE_EXIT_CODE = 2
"""The process can't run as it was told to."""


class Service(Protocol):
    """What a process does."""

    async def start(self) -> None:
        """Gets ready and listens."""

    async def run(self) -> None:
        """Works until it is cancelled, which is after `stop`. Whatever it raises ends the process."""

    async def stop(self) -> None:
        """Drains and lets go of everything."""


def run_service(name: str, config: ServiceConfig, make: Callable[[], Service]) -> None:
    """Runs a service until SIGTERM or SIGINT, then drains it. A second signal ends it at once.

    It ends by itself with `BROKEN_EXIT_CODE` if something unexpected happens, or if its event loop is stuck.

    Raises:
        ConfigError: it can't start as configured.
    """
    configure_logging(name, config.log_level)
    try:
        _run(_serve(make, config.watchdog_seconds))
    except ConfigError:
        raise
    except Exception:
        # A core that found its own invariants broken is not to be trusted with a drain. Whoever supervises the process
        # starts it again.
        log.critical("the process breaks off", exc_info=True)
        os._exit(BROKEN_EXIT_CODE)


async def _serve(make: Callable[[], Service], watchdog_seconds: float) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            sys.exit(128 + number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    with Watchdog(watchdog_seconds, lambda: break_off(BROKEN_EXIT_CODE)):
        await _live(make(), asyncio.ensure_future(stop.wait()))


async def _live(service: Service, stopping: asyncio.Future[Any]) -> None:
    starting = asyncio.ensure_future(service.start())
    if not await _finishes_before(starting, stopping):
        await _cancel(starting)
        return
    _collect_from_here_on()
    working = asyncio.ensure_future(service.run())
    if not await _finishes_before(working, stopping):
        await service.stop()
        await _cancel(working)


def _collect_from_here_on() -> None:
    """What was loaded at the start stays: looking through it for garbage would hold up steps now and then."""
    gc.freeze()
    gc.enable()


async def _finishes_before(task: asyncio.Future[None], stopping: asyncio.Future[Any]) -> bool:
    """Whether the task is done, or raises what it raised, before the signal comes."""
    await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    return task.done()


async def _cancel(task: asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _run(main: Coroutine[Any, Any, None]) -> None:
    """With uvloop where there is one: a round trip between two services takes less than half the time."""
    try:
        import uvloop
    except ImportError:  # not on Windows
        asyncio.run(main)
    else:
        uvloop.run(main)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, service, event, and what the call gave as `extra`."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service
        self._standard = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"time": time, "level": record.levelname.lower(), "service": self._service}
        line["event"] = record.getMessage()
        line |= {key: value for key, value in vars(record).items() if key not in self._standard}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _NotOfThoseWhoLeft(logging.Filter):
    """Drops grpc's word that an answer could not be sent: its client left at that moment, which is nobody's error."""

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.exc_info[0] if record.exc_info else None
        return kind is None or kind.__name__ != "ExecuteBatchError"


def configure_logging(service: str, level: str) -> None:
    """Structured lines on standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(service))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for library in ("asyncio", "grpc", "opentelemetry"):
        logging.getLogger(library).setLevel(logging.WARNING)
    logging.getLogger("grpc._cython.cygrpc").addFilter(_NotOfThoseWhoLeft())
