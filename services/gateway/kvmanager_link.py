"""The way to one group's KV manager: whichever of the group leads has all requests that this gateway gave the group."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import grpc

from octavo.v1 import common_pb2, inference_pb2, kvmanager_pb2
from services.config import join_address
from services.gateway.attachment import Attachment, attach_to_first
from services.gateway.codec import decode_tokens, decode_update
from services.gateway.pacer import Pacer
from services.gateway.request_stream import RequestStream
from services.gateway.waiting import WaitingRequests, unavailable
from services.rpc.channel import Connect
from services.rpc.status import RpcError

log = logging.getLogger(__name__)

R = TypeVar("R")

ANSWER_SECONDS = 10.0
"""What the KV manager gets for a question that it answers from memory; one that takes longer hangs."""

_TAKE_OVER_SECONDS = 2.0
"""What a standby needs to notice that its leader is gone, and to take over."""

_MIN_ROUND_SECONDS, _MAX_ROUND_SECONDS = 1.0, 4.0
"""For how long one way to reach the group's addresses is tried, before names are looked up again and connections that
hang are made anew. It grows, so that a KV manager which is slow to answer is reached as well."""

_PAUSE_SECONDS = 0.05
"""Between a loss and the next try, so that one which takes us in and breaks off at once does not keep us busy."""

_MAX_SUBMISSIONS_IN_VAIN = 10
"""A request that is there each time that KV managers are lost, and gets nothing from any, is taken to be the reason."""

_HAND_OVER_REASONS = frozenset({"DRAINING", "STANDBY"})
"""Refusals that are about the KV manager, not about the request."""


class KVManagerLink:
    """Stays attached. Where the stream breaks, its requests wait and are submitted again to whoever leads next.

    Args:
        addresses: ``host:port`` of the leader and its standbys, in any order; a name may stand for several.
        connect: Reaches them.
        pacer: Of all streams.
        patience: Seconds without a KV manager after which requests end with UNAVAILABLE.
        on_change: Called when `open`, `ready` or `lost` may have changed.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        connect: Connect,
        pacer: Pacer,
        patience: float,
        on_change: Callable[[], None],
    ) -> None:
        self._names = addresses
        self._connect = connect
        self._pacer = pacer
        self._patience = patience
        self._on_change = on_change
        self._requests: dict[int, RequestStream] = {}
        self._expected: Counter[bytes] = Counter()
        """How many of the requests have the block in their prompts, by identity."""
        self._waiting = WaitingRequests()
        self._token_interval_us = 0
        self._attachment: Attachment | None = None
        self._opened = asyncio.Event()
        self._backend = kvmanager_pb2.BackendState()
        self._gives_up_at = 0.0
        self._given_up = True
        self._alarms: list[asyncio.TimerHandle] = []
        self.lost = True
        """No standby has taken over in the time that it takes one, or there never was a KV manager."""
        self._last_failures: dict[str, str] = {}

    # How it is

    @property
    def open(self) -> bool:
        """Attached to a KV manager that knows its model, and so takes requests."""
        return self._opened.is_set()

    @property
    def ready(self) -> bool:
        """It has an executor, or had one until a moment ago. Requests may have to wait."""
        return self._backend.ready and not self._given_up

    @property
    def group(self) -> str:
        """What the prefix directory calls the group."""
        return self._backend.group

    @property
    def load(self) -> int:
        """Requests of this gateway that the group has."""
        return len(self._requests)

    @property
    def tokens_to_prefill(self) -> int:
        """Of prompts of these requests that have no token yet."""
        return sum(len(each.request.prompt_token_ids) for each in self._requests.values() if not each.started)

    def num_expected(self, identities: Sequence[bytes], cached_blocks: int) -> int:
        """How many leading blocks of a prompt the group will have by the time that it is looked at.

        Args:
            identities: Of the prompt's blocks.
            cached_blocks: How many it has already, as far as is known.
        """
        while cached_blocks < len(identities) and identities[cached_blocks] in self._expected:
            cached_blocks += 1
        return cached_blocks

    @property
    def model(self) -> inference_pb2.Model:
        """The model behind the KV manager, or the one that was there until a moment ago.

        Raises:
            RpcError: UNAVAILABLE: there is none.
        """
        self._check_not_given_up()
        return self._backend.model

    def _check_not_given_up(self) -> None:
        if self._given_up:
            attached = self._attachment is not None
            raise unavailable("no executor is connected" if attached else "the KV manager can't be reached")

    # Requests

    def submit(self, stream: RequestStream) -> None:
        """Takes a request.

        Raises:
            RpcError: UNAVAILABLE: there is no KV manager, and hasn't been for a while. RESOURCE_EXHAUSTED: too many
                wait for its return.
        """
        self._check_not_given_up()
        if not self.open:
            self._waiting.check_room(stream)
            self._waiting.add(stream, self._gives_up_at, new=True)
        self._requests[stream.handle] = stream
        self._expected.update(stream.identities)
        stream.carrier = self
        self._pacer.join(stream.pace)
        if self.open:
            self._send(stream)

    def move_all_to(self, other: KVManagerLink) -> None:
        """Requests that wait here go on in another group."""
        for stream in self._waiting.take_all():
            self._remove(stream)
            try:
                other.submit(stream)
            except RpcError as error:
                stream.fail(error)

    def _send(self, stream: RequestStream) -> None:
        assert self._attachment is not None
        stream.submissions_in_vain += 1
        if stream.submissions_in_vain > _MAX_SUBMISSIONS_IN_VAIN:
            message = f"KV managers were lost {_MAX_SUBMISSIONS_IN_VAIN} times while they had the request"
            stream.fail(unavailable(message))
            return
        if stream.complete:
            stream.end(kvmanager_pb2.RequestEnd(handle=stream.handle, usage=common_pb2.Usage()))
            return
        request = kvmanager_pb2.AttachRequest(submissions=[stream.submission()])
        self._set_token_interval(request)
        self._attachment.send(request)

    def _set_token_interval(self, message: kvmanager_pb2.AttachRequest) -> None:
        """Tokens that would wait for their turn here may as well come together."""
        interval_us = round(self._pacer.shortest_interval * 1e6)
        if interval_us != self._token_interval_us:
            self._token_interval_us = message.token_interval_us = interval_us

    def abort(self, abort: kvmanager_pb2.Abort) -> None:
        """Ends a request or one of its sequences there."""
        if self._attachment is not None:
            self._attachment.send(kvmanager_pb2.AttachRequest(aborts=[abort]))

    def forget(self, stream: RequestStream) -> None:
        """Nothing more is to be delivered to a request."""
        self._waiting.discard(stream)
        if stream.handle not in self._requests:
            return
        self._remove(stream)
        # Those that are left are told of it when it has become much shorter; otherwise with the next request.
        interval_us = self._pacer.shortest_interval * 1e6
        if self._requests and self._attachment is not None and interval_us < self._token_interval_us / 2:
            message = kvmanager_pb2.AttachRequest()
            self._set_token_interval(message)
            self._attachment.send(message)

    def _remove(self, stream: RequestStream) -> None:
        del self._requests[stream.handle]
        self._pacer.leave(stream.pace)
        for identity in stream.identities:
            self._expected[identity] -= 1
            if not self._expected[identity]:
                del self._expected[identity]

    # Pins that are there

    async def unpin(self, tenant: str, pin_id: str) -> None:
        """Lets go of one of a tenant's pins.

        Raises:
            RpcError: NOT_FOUND: there is none of that id; UNAVAILABLE while there is no KV manager.
        """
        request = kvmanager_pb2.UnpinRequest(tenant=tenant, pin_id=pin_id)
        await self.ask(lambda stub: stub.Unpin(request, timeout=ANSWER_SECONDS))

    async def pins(self, tenant: str) -> list[inference_pb2.Pin]:
        """A tenant's pins.

        Raises:
            RpcError: UNAVAILABLE while there is no KV manager.
        """
        request = kvmanager_pb2.ListTenantPinsRequest(tenant=tenant)
        answer: kvmanager_pb2.ListTenantPinsResponse = await self.ask(
            lambda stub: stub.ListTenantPins(request, timeout=ANSWER_SECONDS)
        )
        return list(answer.pins)

    # Questions

    async def ask(self, call: Callable[[Any], Awaitable[R]]) -> R:
        """Asks the KV manager that leads, waiting for one if need be.

        Args:
            call: gets the stub.

        Raises:
            RpcError: UNAVAILABLE: there is none, or it does not answer. NOT_FOUND: what it says there is not.
        """
        self._check_not_given_up()
        if not self.open:
            seconds = self._gives_up_at - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(self._opened.wait(), seconds)
            except asyncio.TimeoutError:
                raise unavailable("the KV manager can't be reached") from None
        assert self._attachment is not None
        return await _answer_of(call(self._attachment.stub))

    async def watch_memory(self, seconds: float) -> AsyncIterator[kvmanager_pb2.WatchMemoryResponse]:
        """Physical blocks as they change, looked at every so many seconds, until the KV manager is lost.

        Raises:
            RpcError: UNAVAILABLE: there is none, or none any more.
        """
        if self._attachment is None or not self.open:
            raise unavailable("the KV manager can't be reached")
        request = kvmanager_pb2.WatchMemoryRequest()
        request.interval.FromMicroseconds(round(seconds * 1e6))
        call = self._attachment.stub.WatchMemory(request)
        try:
            while (message := await _answer_of(call.read())) is not grpc.aio.EOF:  # type: ignore[attr-defined]  # grpc-stubs lack it
                yield message
        finally:
            call.cancel()

    async def leader(self) -> tuple[Attachment, grpc.aio.Channel]:
        """Whoever leads, as soon as there is somebody, and a connection of the caller's own to it."""
        await self._opened.wait()
        while self._attachment is None:
            await asyncio.sleep(_PAUSE_SECONDS)
            await self._opened.wait()
        return self._attachment, self._connect(self._attachment.address)

    # The stream

    async def run(self) -> None:
        """Stays attached until cancelled."""
        while True:
            attachment = await self._attach()
            try:
                self._begin(attachment)
                reason = await attachment.serve(self._take)
            except (ValueError, LookupError) as error:
                reason = f"a message that makes no sense: {error}"
            finally:
                self._lose()
                await attachment.close()
            log.warning("KV manager lost", extra={"address": attachment.address, "reason": reason})
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _attach(self) -> Attachment:
        seconds = _MIN_ROUND_SECONDS
        while True:
            addresses = await self._look_up()
            attachment = await attach_to_first(addresses, self._connect, seconds, self._note_failure)
            if attachment is not None:
                self._last_failures.clear()
                return attachment
            seconds = min(2 * seconds, _MAX_ROUND_SECONDS)

    async def _look_up(self) -> list[str]:
        """All addresses that the names stand for."""
        addresses: list[str] = []
        for name in self._names:
            host, _, port = name.rpartition(":")
            try:
                found = await asyncio.get_running_loop().getaddrinfo(
                    host.strip("[]"), int(port), type=socket.SOCK_STREAM
                )
            except OSError as error:
                self._note_failure(name, str(error))
            else:
                addresses += (join_address(str(address[0]), int(address[1])) for *_, address in found)
        return list(dict.fromkeys(addresses))

    def _note_failure(self, address: str, reason: str) -> None:
        """One line each time that it fails in another way, not one for each try."""
        known = self._last_failures.get(address) == reason
        log.log(logging.DEBUG if known else logging.INFO, "not attached", extra={"address": address, "reason": reason})
        self._last_failures[address] = reason

    def _begin(self, attachment: Attachment) -> None:
        self._attachment = attachment
        self._token_interval_us = 0
        log.info("attached", extra={"address": attachment.address})
        self._take(attachment.first)

    def _take(self, message: kvmanager_pb2.AttachResponse) -> None:
        if message.HasField("backend"):
            self._take_backend(message.backend)
        find = self._requests.get
        for progress in message.progress:
            if (stream := find(progress.handle)) is not None:
                stream.add_progress(progress.prefill)
        for handle, tokens in decode_tokens(message.tokens):
            if (stream := find(handle)) is not None:
                stream.add(tokens)
        for update in message.updates:
            if (stream := find(update.handle)) is not None:
                stream.add(decode_update(update))
        for end in message.ends:
            if (stream := find(end.handle)) is not None:
                self._end(stream, end)

    def _take_backend(self, backend: kvmanager_pb2.BackendState) -> None:
        log.info("backend", extra={"ready": backend.ready, "epoch": backend.epoch})
        if backend.HasField("model"):
            self._backend = backend
            if not self.open:
                self._open()
        # One that has started a moment ago has not found its executors yet: what was there before still counts.
        self._on_change()

    def _open(self) -> None:
        """Requests can be sent."""
        self._opened.set()
        self._given_up = False
        self.lost = False
        for alarm in self._alarms:
            alarm.cancel()
        for stream in self._waiting.take_all():
            self._send(stream)

    def _end(self, stream: RequestStream, end: kvmanager_pb2.RequestEnd) -> None:
        if end.error.reason in _HAND_OVER_REASONS:
            # Patience begins when this KV manager is gone: until then it brings others' answers to their end.
            self._waiting.add(stream, None)
        else:
            stream.end(end)

    def _lose(self) -> None:
        """The stream is gone, and with it whatever was on its way."""
        self._attachment = None
        if self.open:
            self._opened.clear()
            loop = asyncio.get_running_loop()
            self._gives_up_at = loop.time() + self._patience
            self._alarms = [
                loop.call_later(_TAKE_OVER_SECONDS, self._count_as_lost),
                loop.call_at(self._gives_up_at, self._give_up),
            ]
            for stream in self._requests.values():
                if not stream.settled:
                    stream.submitted_before |= stream not in self._waiting
                    self._waiting.add(stream, self._gives_up_at)
        self._on_change()

    def _count_as_lost(self) -> None:
        self.lost = True
        self._on_change()

    def _give_up(self) -> None:
        """It has been away for too long. Those who wait are told by their own timers."""
        self._given_up = True
        self._on_change()


async def _answer_of(answer: Awaitable[R]) -> R:
    """Waits for an answer. grpc cancels what waits on a connection that is closed: that is not to cancel who asked.

    Raises:
        RpcError: as the KV manager says, or UNAVAILABLE: it is lost.
    """
    waiting = asyncio.ensure_future(answer)
    try:
        await asyncio.wait([waiting])
    finally:
        waiting.cancel()
    if waiting.cancelled():
        raise unavailable("the KV manager is lost")
    try:
        return waiting.result()
    except grpc.aio.AioRpcError as error:
        raise _refusal(error) from error


def _refusal(error: grpc.aio.AioRpcError) -> RpcError:
    """What a client is told when a question to the KV manager failed."""
    code, message = error.code(), error.details() or ""
    if code is grpc.StatusCode.NOT_FOUND:
        return RpcError(code, message, "NOT_FOUND")
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return unavailable("the KV manager can't be reached")
    log.error("a question to the KV manager failed", extra={"code": code.name, "reason": message})
    return RpcError(grpc.StatusCode.INTERNAL, "internal error; see the gateway's log", "INTERNAL")
