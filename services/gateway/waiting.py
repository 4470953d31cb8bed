"""Requests that no KV manager has: they wait for one, until their own time or everybody's patience is over."""

from __future__ import annotations

import asyncio

import grpc

from services.gateway.request_stream import RequestStream
from services.rpc.status import RpcError

RETRY_AFTER_SECONDS = 1.0
"""What a client is told to wait when there is no KV manager."""

MAX_NEW_REQUESTS = 1024
"""Most that may come while there is no KV manager, as many as one lets wait by default; more are refused at once."""

MAX_NEW_TOKENS = 1 << 20
"""Most tokens that their prompts may have together."""


class WaitingRequests:
    """Keeps the requests in the order of their handles, and ends those whose time is over."""

    def __init__(self) -> None:
        self._timers: dict[RequestStream, asyncio.TimerHandle | None] = {}
        self._new_tokens: dict[RequestStream, int] = {}

    def __contains__(self, stream: RequestStream) -> bool:
        return stream in self._timers

    def check_room(self, stream: RequestStream) -> None:
        """Checks that one more request may come.

        Raises:
            RpcError: RESOURCE_EXHAUSTED: too many have come already.
        """
        tokens = len(stream.request.prompt_token_ids)
        if len(self._new_tokens) >= MAX_NEW_REQUESTS or sum(self._new_tokens.values()) + tokens > MAX_NEW_TOKENS:
            message = "the KV manager is away, and too many requests wait for it already"
            raise RpcError(grpc.StatusCode.RESOURCE_EXHAUSTED, message, "QUEUE_FULL", retry_after=RETRY_AFTER_SECONDS)

    def add(self, stream: RequestStream, give_up_at: float | None, *, new: bool = False) -> None:
        """A request waits from here on.

        Args:
            give_up_at: When it is UNAVAILABLE, by the event loop's clock; None: not yet known. At its own deadline it
                ends in any case.
            new: Counts for those that come while there is no KV manager.
        """
        when, error = give_up_at, unavailable("the KV manager can't be reached")
        if stream.deadline is not None and (when is None or stream.deadline <= when):
            when, error = stream.deadline, time_is_over()
        self.discard(stream)
        self._timers[stream] = None
        if when is not None:
            self._timers[stream] = asyncio.get_running_loop().call_at(when, self._give_up, stream, error)
        if new:
            self._new_tokens[stream] = len(stream.request.prompt_token_ids)

    def discard(self, stream: RequestStream) -> None:
        """It does not wait, or no longer."""
        if (timer := self._timers.pop(stream, None)) is not None:
            timer.cancel()
        self._new_tokens.pop(stream, None)

    def take_all(self) -> list[RequestStream]:
        """All that wait, as they arrived; none waits any more."""
        streams = sorted(self._timers, key=lambda stream: stream.handle)
        for stream in streams:
            self.discard(stream)
        return streams

    def _give_up(self, stream: RequestStream, error: RpcError) -> None:
        self.discard(stream)
        stream.fail(error)


def unavailable(message: str) -> RpcError:
    """There is nobody to compute anything."""
    return RpcError(grpc.StatusCode.UNAVAILABLE, message, "BACKEND_UNAVAILABLE", retry_after=RETRY_AFTER_SECONDS)


def time_is_over() -> RpcError:
    """As a KV manager says it."""
    message = "the request's time is over"
    return RpcError(grpc.StatusCode.DEADLINE_EXCEEDED, message, "DEADLINE_EXCEEDED", "timeout")
