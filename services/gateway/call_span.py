"""The span of one call, and what becomes of a call that fails."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType

import grpc

from gateway.errors import PositionGap
from services.rpc.status import RpcError
from services.telemetry.tracing import RequestSpan

log = logging.getLogger(__name__)


class CallSpan:
    """Ends a span with the error that ends its block. A fault of ours becomes INTERNAL, which the log explains."""

    def __init__(self, span: RequestSpan) -> None:
        self._span = span

    def __enter__(self) -> RequestSpan:
        return self._span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, RpcError):
            self._span.end({"error.type": error.reason}, str(error))
        elif isinstance(error, (asyncio.CancelledError, GeneratorExit)):
            self._span.end({"error.type": "CANCELLED"}, "the client went away")
        elif isinstance(error, (PositionGap, AssertionError)):
            log.error("a request broke off", exc_info=error)
            self._span.end({"error.type": type(error).__name__}, str(error))
            message = "internal error; see the gateway's log"
            raise RpcError(grpc.StatusCode.INTERNAL, message, "INTERNAL") from error
