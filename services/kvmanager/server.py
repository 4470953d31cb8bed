"""KVManagerService: gateways attach to it, executors are attached by it, and whoever likes may look in."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator

import grpc
from google.protobuf.duration_pb2 import Duration

from kvmanager.cost_model import Preemption
from kvmanager.limits import Limits
from kvmanager.manager import KVManager
from octavo.v1 import kvmanager_pb2, kvmanager_pb2_grpc
from services.config import ConfigError, KVManagerConfig, check_address
from services.kvmanager.discovery import Discovery
from services.kvmanager.driver import Driver
from services.kvmanager.epochs import Epochs
from services.kvmanager.executors import AlreadyListed, Executors, NotListed
from services.kvmanager.request_traces import RequestTraces
from services.kvmanager.views_codec import encode_memory_map, encode_pin
from services.kvmanager.watches import first_event, kv_events, watch_memory
from services.process import run_service
from services.rpc.channel import connector
from services.rpc.roles import CALLERS
from services.rpc.server import Context, RpcServer
from services.rpc.status import RpcError, abort
from services.state.leadership import Holder
from services.state.store import open_store
from services.telemetry.tracing import make_tracing

log = logging.getLogger(__name__)

SERVICE = kvmanager_pb2.DESCRIPTOR.services_by_name["KVManagerService"].full_name

INTEGRITY_SECONDS = 1.0
STOP_SECONDS = 0.5

WATCH_SECONDS = 0.1
MIN_WATCH_SECONDS = 0.02
MAX_WATCH_SECONDS = 3600.0


class KVManagerServicer(kvmanager_pb2_grpc.KVManagerServiceServicer):
    """Translates calls; the driver and the executors' list do what is asked."""

    def __init__(self, driver: Driver, executors: Executors) -> None:
        self._driver = driver
        self._executors = executors

    async def Attach(
        self, request_iterator: AsyncIterator[kvmanager_pb2.AttachRequest], context: Context
    ) -> AsyncIterator[kvmanager_pb2.AttachResponse]:
        session, outbox = self._driver.open_session()
        log.info("gateway attached", extra={"session": session, "peer": context.peer()})
        reader = asyncio.ensure_future(self._read(session, request_iterator))
        reader.add_done_callback(lambda _: outbox.put_nowait(kvmanager_pb2.AttachResponse()))
        try:
            yield kvmanager_pb2.AttachResponse(backend=self._driver.backend)
            while not reader.done() or not outbox.empty():
                yield await outbox.get()
            reader.result()
        finally:
            reader.cancel()
            self._driver.close_session(session)
            log.info("gateway gone", extra={"session": session})

    async def _read(self, session: int, requests: AsyncIterator[kvmanager_pb2.AttachRequest]) -> None:
        async for message in requests:
            self._driver.take(session, message)

    async def GetMemoryMap(
        self, request: kvmanager_pb2.GetMemoryMapRequest, context: Context
    ) -> kvmanager_pb2.GetMemoryMapResponse:
        if self._driver.manager.capacity is None:
            await abort(context, RpcError(grpc.StatusCode.UNAVAILABLE, "no executor is connected", "UNAVAILABLE"))
        return encode_memory_map(self._driver.manager, self._driver.bytes_per_block, request.include_blocks)

    async def WatchMemory(
        self, request: kvmanager_pb2.WatchMemoryRequest, context: Context
    ) -> AsyncIterator[kvmanager_pb2.WatchMemoryResponse]:
        interval = WATCH_SECONDS
        if request.HasField("interval"):
            interval = await _seconds(request.interval, context)
        await context.send_initial_metadata(())
        async for message in watch_memory(self._driver.manager, interval):
            yield message

    async def SubscribeKvEvents(
        self, request: kvmanager_pb2.SubscribeKvEventsRequest, context: Context
    ) -> AsyncIterator[kvmanager_pb2.SubscribeKvEventsResponse]:
        events = self._driver.manager.kv_events
        try:
            number = first_event(events, request.from_sequence_number)
        except RpcError as error:
            await abort(context, error)
        await context.send_initial_metadata(())
        async for message in kv_events(events, number):
            yield message

    async def AddExecutor(
        self, request: kvmanager_pb2.AddExecutorRequest, context: Context
    ) -> kvmanager_pb2.AddExecutorResponse:
        await _check_address(request.address, context)
        try:
            self._executors.add(request.address)
        except AlreadyListed:
            message = f"address: {request.address} is in the list, or has not quite left it"
            await abort(context, RpcError(grpc.StatusCode.ALREADY_EXISTS, message, "ALREADY_LISTED", "address"))
        return kvmanager_pb2.AddExecutorResponse()

    async def DrainExecutor(
        self, request: kvmanager_pb2.DrainExecutorRequest, context: Context
    ) -> kvmanager_pb2.DrainExecutorResponse:
        await _check_address(request.address, context)
        try:
            await self._executors.drain(request.address)
        except NotListed:
            message = f"address: there is no executor {request.address}"
            await abort(context, RpcError(grpc.StatusCode.NOT_FOUND, message, "NOT_LISTED", "address"))
        return kvmanager_pb2.DrainExecutorResponse()

    async def Unpin(self, request: kvmanager_pb2.UnpinRequest, context: Context) -> kvmanager_pb2.UnpinResponse:
        await _check_given("tenant", request.tenant, context)
        await _check_given("pin_id", request.pin_id, context)
        if not self._driver.unpin(request.tenant, request.pin_id):
            message = f"pin_id: the tenant has no pin {request.pin_id}"
            await abort(context, RpcError(grpc.StatusCode.NOT_FOUND, message, "NO_SUCH_PIN", "pin_id"))
        return kvmanager_pb2.UnpinResponse()

    async def ListTenantPins(
        self, request: kvmanager_pb2.ListTenantPinsRequest, context: Context
    ) -> kvmanager_pb2.ListTenantPinsResponse:
        await _check_given("tenant", request.tenant, context)
        manager, now = self._driver.manager, time.monotonic()
        if manager.capacity is None:
            return kvmanager_pb2.ListTenantPinsResponse()
        block_size = manager.capacity.block_size
        pins = [encode_pin(pin, block_size, now) for pin in manager.list_pins(request.tenant)]
        return kvmanager_pb2.ListTenantPinsResponse(pins=pins)


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


class KVManagerService:
    """The process: connect to the executors, serve gateways, drain."""

    def __init__(self, config: KVManagerConfig) -> None:
        self._config = config
        try:
            limits = Limits(config.max_batched_tokens, config.max_sequences, config.max_waiting_requests)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        self._store = open_store(config.state, config.state_password())
        self._tracing = make_tracing("octavo-kvmanager", config.otlp_endpoint)
        traces = RequestTraces(self._tracing, time.time() - time.monotonic())
        manager = KVManager(
            limits,
            policy=config.policy,
            preemption=Preemption(config.preemption),
            quotas=config.quotas(),
            prefix_caching=config.prefix_caching,
            on_event=traces.on_event,
        )
        self._driver = Driver(manager, traces)
        self._server = RpcServer(config, [SERVICE], callers=CALLERS["kvmanager"])

    async def start(self) -> None:
        await self._store.start()
        # One that is started anew at its address has the lease that it had.
        holder = Holder(self._config.address, "kvmanager")
        group = self._config.executors
        epochs = Epochs(self._store.leadership, group, holder)
        patience, connect = self._config.executor_patience, connector(self._config, "executor")
        self._executors = Executors(self._driver, self._store.executors, group, epochs, patience, connect)
        self._discovery = Discovery(self._config.executor_addresses(), self._executors, self._driver)
        servicer = KVManagerServicer(self._driver, self._executors)
        kvmanager_pb2_grpc.add_KVManagerServiceServicer_to_server(servicer, self._server.grpc)
        await self._server.start()

    async def run(self) -> None:
        await asyncio.gather(
            self._executors.run(), self._discovery.run(), self._report_health(), self._check_integrity()
        )

    async def _report_health(self) -> None:
        """SERVING while there is an executor that takes requests, and steps go on."""
        while True:
            await self._driver.changed.wait()
            self._driver.changed.clear()
            await self._server.set_serving(self._driver.serving)

    async def _check_integrity(self) -> None:
        while True:
            await asyncio.sleep(INTEGRITY_SECONDS)
            self._driver.check_when_idle()

    async def stop(self) -> None:
        await self._server.announce_shutdown()
        await self._driver.drain(self._config.drain_seconds)
        await self._server.stop(STOP_SECONDS)
        await self._store.close()
        self._tracing.shutdown()


def run(config: KVManagerConfig) -> None:
    """Serves until a signal.

    Raises:
        ConfigError: the settings contradict each other, or the port is in use.
    """
    run_service("kvmanager", config, lambda: KVManagerService(config))
