"""What a KV manager answers: as long as it leads, what its term has to say, and otherwise that another leads."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Protocol, TypeVar

import grpc
from google.protobuf.duration_pb2 import Duration

from octavo.v1 import kvmanager_pb2, kvmanager_pb2_grpc
from services.config import ConfigError, check_address
from services.kvmanager.driver import Driver
from services.kvmanager.executors import AlreadyListed, NotListed
from services.kvmanager.prefix_trees import cached_prefixes
from services.kvmanager.term import STANDBY, Term
from services.kvmanager.views_codec import encode_memory_map, encode_pin
from services.kvmanager.watches import cached_blocks_and_events, first_event, kv_events, watch_memory
from services.rpc.server import Context
from services.rpc.status import RpcError, abort

log = logging.getLogger(__name__)

WATCH_SECONDS = 0.1
MIN_WATCH_SECONDS = 0.02
MAX_WATCH_SECONDS = 3600.0

T = TypeVar("T")


class HasTerm(Protocol):
    """Whoever leads, now and then."""

    @property
    def term(self) -> Term | None:
        """None for a standby."""


class KVManagerServicer(kvmanager_pb2_grpc.KVManagerServiceServicer):
    """Translates calls; the term's driver and list of executors do what is asked."""

    def __init__(self, service: HasTerm) -> None:
        self._service = service

    async def _term(self, context: Context) -> Term:
        term = self._service.term
        if term is None:
            await abort(context, STANDBY)
            raise AssertionError("abort raises")
        return term

    async def Attach(
        self, request_iterator: AsyncIterator[kvmanager_pb2.AttachRequest], context: Context
    ) -> AsyncIterator[kvmanager_pb2.AttachResponse]:
        driver = (await self._term(context)).driver
        session = driver.open_session()
        log.info("gateway attached", extra={"session": session.number, "peer": context.peer()})
        reader = asyncio.ensure_future(self._read(driver, session.number, request_iterator))
        reader.add_done_callback(lambda _: session.outbox.put_nowait(None))
        try:
            yield kvmanager_pb2.AttachResponse(backend=driver.backend)
            while (message := await session.outbox.get()) is not None:
                yield message
            if session.farewell is not None:
                await abort(context, session.farewell)
            reader.result()
        finally:
            reader.cancel()
            driver.close_session(session.number)
            log.info("gateway gone", extra={"session": session.number})

    async def _read(self, driver: Driver, session: int, requests: AsyncIterator[kvmanager_pb2.AttachRequest]) -> None:
        async for message in requests:
            driver.take(session, message)

    async def GetMemoryMap(
        self, request: kvmanager_pb2.GetMemoryMapRequest, context: Context
    ) -> kvmanager_pb2.GetMemoryMapResponse:
        driver = (await self._term(context)).driver
        if driver.manager.capacity is None:
            await abort(context, RpcError(grpc.StatusCode.UNAVAILABLE, "no executor is connected", "UNAVAILABLE"))
        message = encode_memory_map(driver.manager, driver.bytes_per_block, request.include_blocks)
        steps = driver.metrics.step_tokens
        message.step_tokens.CopyFrom(kvmanager_pb2.StepTokens(counts=steps.counts, total=round(steps.total)))
        return message

    async def WatchMemory(
        self, request: kvmanager_pb2.WatchMemoryRequest, context: Context
    ) -> AsyncIterator[kvmanager_pb2.WatchMemoryResponse]:
        term = await self._term(context)
        interval = WATCH_SECONDS
        if request.HasField("interval"):
            interval = await _seconds(request.interval, context)
        await context.send_initial_metadata(())
        async for message in _while_leading(term, watch_memory(term.driver.manager, interval), context):
            yield message

    async def SubscribeKvEvents(
        self, request: kvmanager_pb2.SubscribeKvEventsRequest, context: Context
    ) -> AsyncIterator[kvmanager_pb2.SubscribeKvEventsResponse]:
        term = await self._term(context)
        manager = term.driver.manager
        try:
            number = first_event(manager.kv_events, request.from_sequence_number)
        except RpcError as error:
            await abort(context, error)
        await context.send_initial_metadata(())
        messages = kv_events(manager.kv_events, number)
        if request.current_blocks_first:
            messages = cached_blocks_and_events(manager)
        async for message in _while_leading(term, messages, context):
            yield message

    async def AddExecutor(
        self, request: kvmanager_pb2.AddExecutorRequest, context: Context
    ) -> kvmanager_pb2.AddExecutorResponse:
        await _check_address(request.address, context)
        term = await self._term(context)
        try:
            term.executors.add(request.address)
        except AlreadyListed:
            message = f"address: {request.address} is in the list, or has not quite left it"
            await abort(context, RpcError(grpc.StatusCode.ALREADY_EXISTS, message, "ALREADY_LISTED", "address"))
        return kvmanager_pb2.AddExecutorResponse()

    async def DrainExecutor(
        self, request: kvmanager_pb2.DrainExecutorRequest, context: Context
    ) -> kvmanager_pb2.DrainExecutorResponse:
        await _check_address(request.address, context)
        term = await self._term(context)
        try:
            await term.executors.drain(request.address)
        except NotListed:
            message = f"address: there is no executor {request.address}"
            await abort(context, RpcError(grpc.StatusCode.NOT_FOUND, message, "NOT_LISTED", "address"))
        return kvmanager_pb2.DrainExecutorResponse()

    async def Unpin(self, request: kvmanager_pb2.UnpinRequest, context: Context) -> kvmanager_pb2.UnpinResponse:
        await _check_given("tenant", request.tenant, context)
        await _check_given("pin_id", request.pin_id, context)
        term = await self._term(context)
        if not term.driver.unpin(request.tenant, request.pin_id):
            message = f"pin_id: the tenant has no pin {request.pin_id}"
            await abort(context, RpcError(grpc.StatusCode.NOT_FOUND, message, "NO_SUCH_PIN", "pin_id"))
        await term.note_pins()
        return kvmanager_pb2.UnpinResponse()

    async def ListTenantPins(
        self, request: kvmanager_pb2.ListTenantPinsRequest, context: Context
    ) -> kvmanager_pb2.ListTenantPinsResponse:
        await _check_given("tenant", request.tenant, context)
        manager, now = (await self._term(context)).driver.manager, time.monotonic()
        if manager.capacity is None:
            return kvmanager_pb2.ListTenantPinsResponse()
        block_size = manager.capacity.block_size
        pins = [encode_pin(pin, block_size, now) for pin in manager.list_pins(request.tenant)]
        return kvmanager_pb2.ListTenantPinsResponse(pins=pins)

    # Requests and prefixes

    async def ListRequests(
        self, request: kvmanager_pb2.KVManagerServiceListRequestsRequest, context: Context
    ) -> kvmanager_pb2.KVManagerServiceListRequestsResponse:
        requests = (await self._term(context)).requests
        found = await requests.list(request.tenant, max(request.num_ended, 0), request.include_blocks)
        return kvmanager_pb2.KVManagerServiceListRequestsResponse(requests=found)

    async def GetTimeline(
        self, request: kvmanager_pb2.GetTimelineRequest, context: Context
    ) -> kvmanager_pb2.GetTimelineResponse:
        await _check_given("request_id", request.request_id, context)
        timeline = (await self._term(context)).requests.timeline(request.tenant, request.request_id)
        if timeline is None:
            message = f"request_id: there is no request {request.request_id}, or it ended too long ago"
            await abort(context, RpcError(grpc.StatusCode.NOT_FOUND, message, "NO_SUCH_REQUEST", "request_id"))
        return kvmanager_pb2.GetTimelineResponse(timeline=timeline)

    async def GetPrefixTree(
        self, request: kvmanager_pb2.KVManagerServiceGetPrefixTreeRequest, context: Context
    ) -> kvmanager_pb2.KVManagerServiceGetPrefixTreeResponse:
        if request.max_nodes <= 0:
            await _refuse("max_nodes", "must be at least 1", context)
        manager = (await self._term(context)).driver.manager
        return await cached_prefixes(manager, frozenset(request.owners), request.max_nodes)


async def _while_leading(term: Term, messages: AsyncIterator[T], context: Context) -> AsyncIterator[T]:
    """Passes messages on until the term is over, and says so then."""
    over = asyncio.ensure_future(term.over.wait())
    following: asyncio.Future[T] | None = None
    try:
        while True:
            following = asyncio.ensure_future(_next(messages))
            await asyncio.wait([following, over], return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                await abort(context, STANDBY)
            yield following.result()
    finally:
        over.cancel()
        if following is not None:
            following.cancel()


async def _next(messages: AsyncIterator[T]) -> T:
    return await messages.__anext__()


async def _seconds(interval: Duration, context: Context) -> float:
    seconds = interval.seconds + interval.nanos / 1e9
    if not MIN_WATCH_SECONDS <= seconds <= MAX_WATCH_SECONDS:
        limits = f"from {MIN_WATCH_SECONDS:g} to {MAX_WATCH_SECONDS:g} s"
        await _refuse("interval", f"is {seconds:g} s; it must be {limits}", context)
    return seconds


async def _check_address(address: str, context: Context) -> None:
    try:
        check_address("address", address)
    except ConfigError as error:
        await _refuse("address", str(error).removeprefix("address: "), context)


async def _check_given(field: str, value: str, context: Context) -> None:
    if not value:
        await _refuse(field, "must not be empty", context)


async def _refuse(field: str, why: str, context: Context) -> None:
    await abort(context, RpcError(grpc.StatusCode.INVALID_ARGUMENT, f"{field}: {why}", "INVALID_ARGUMENT", field))
